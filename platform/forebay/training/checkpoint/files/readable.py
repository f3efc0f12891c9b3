"""Checkpoints of a run that a reader sees: an export, a fork, a warm start."""

from __future__ import annotations

from dataclasses import replace

from forebay.storage.filesystem import below, resolve
from forebay.training.checkpoint.config import FOLDER, CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.claim import ATTEMPTS, newest_number, read_claim


def readable_checkpoints(run: str) -> CheckpointFiles:
    """Checkpoints in storage of the run in folder `run`, for a reader that is no attempt of it.

    Those that the newest attempt wrote or may restore: none that an earlier one wrote after it was taken over.
    Raises `InvalidOption` if its claim is damaged.
    """
    config, attempts = CheckpointConfig(uri=below(run, FOLDER)), resolve(below(run, ATTEMPTS))
    number = newest_number(attempts)
    claim = None if number is None else read_claim(attempts, number)
    if claim is not None and claim.restorable is not None:
        config = replace(config, claimed=claim.number, restorable=frozenset(claim.restorable))
    return CheckpointFiles(config)
