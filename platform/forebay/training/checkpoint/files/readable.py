"""Checkpoints of a run that a reader sees: an export, a fork, a warm start."""

from __future__ import annotations

import json
from dataclasses import replace

from forebay.errors import InvalidOption
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children
from forebay.storage.json_file import read_json_file
from forebay.training.checkpoint.config import ATTEMPTS, CLAIM_FORM, FOLDER, CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import checkpoint_names


def readable_checkpoints(run: str) -> CheckpointFiles:
    """Checkpoints in storage of the run in folder `run`, for a reader that is no attempt of it.

    Those that the newest attempt wrote or may restore: none that an earlier one wrote after it was taken over.
    Raises `InvalidOption` if its claim is damaged.
    """
    config, claims = CheckpointConfig(uri=below(run, FOLDER)), resolve(below(run, ATTEMPTS))
    try:
        found = [CLAIM_FORM.fullmatch(info.base_name) for info in children(claims.fs, claims.path)]
    except (FileNotFoundError, NotADirectoryError):
        found = []
    name = max((each[0] for each in found if each), key=lambda each: (len(each), each), default=None)
    content = None if name is None else read_json_file(claims.uri, name, "claim")
    pinned = None if content is None else _restorable_by(content, f"{claims.uri}/{name}")
    if name is not None and pinned is not None:
        config = replace(config, claimed=int(name.removesuffix(".json")), restorable=pinned)
    return CheckpointFiles(config)


def _restorable_by(claim: bytes, uri: str) -> frozenset[str] | None:
    """Names of the checkpoints that an attempt may restore by its claim. None if it does not say.

    Raises `InvalidOption` if the content is no claim.
    """
    try:
        names = dict(json.loads(claim)).get("restorable")
        return None if names is None else frozenset(checkpoint_names(names))
    except (ValueError, TypeError) as error:
        raise InvalidOption(
            f"{uri} is not a claim of a Forebay run ({error}). Copy the run's folder again, or remove the file if no "
            "process trains the run.",
            uri=uri,
        ) from error
