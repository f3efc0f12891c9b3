"""Models of the Hugging Face Hub as cached folders.

Each node downloads a model once, into the cache of `huggingface_hub`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors

_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w.-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = ("*.json", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt")
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
_LEFT_OUT = ("*/*", "consolidated*")
"""Copies of the weights in other forms."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, slots=True)
class HubModel:
    """Repository on the Hub, and a branch, tag or commit."""

    repo: str
    revision: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}"


def hub_model(model: str) -> HubModel | None:
    """Parse "org/name" or "org/name@revision".

    None for all other names, and for local folders.
    """
    found = _NAME.fullmatch(model)
    if found is None or Path(model).exists():
        return None
    return HubModel(found["repo"], found["revision"] or "main")


def pinned_model(model: str) -> str:
    """Pin a model of the Hub to its present commit.

    All workers and later runs share it. Other names are returned unchanged.

    Downloads the configuration and the tokenizer. Raises `InvalidOption` for a model that the Hub does not give.
    """
    hub = hub_model(model)
    if hub is None or _COMMIT.fullmatch(hub.revision):
        return model
    return str(HubModel(hub.repo, Path(hub_copy(hub, with_weights=False)).name))


def hub_copy(hub: HubModel, *, with_weights: bool) -> str:
    """Download a model's missing files, and return its folder.

    Configuration, tokenizer and safetensors.

    Processes of one machine share the folder, and wait for each other. Without a network, it has to be in the cache.

    Raises `InvalidOption`.
    """
    download = _library().snapshot_download
    patterns = [*_SMALL, *(_WEIGHTS if with_weights else ())]
    with _asking(hub):
        folder: str = download(
            hub.repo, revision=hub.revision, allow_patterns=patterns, ignore_patterns=list(_LEFT_OUT)
        )
    return folder


def hub_names(hub: HubModel) -> set[str]:
    """Names of a model's files on the Hub, without subfolders.

    Without a network, the names in the cache.
    """
    listing = partial(_library().HfApi().list_repo_files, hub.repo, revision=hub.revision)
    try:
        with _asking(hub):
            return {name for name in listing() if "/" not in name}
    except InvalidOption:
        return {path.name for path in Path(hub_copy(hub, with_weights=True)).iterdir()}


def _asking(hub: HubModel) -> AbstractContextManager[None]:
    """Raise the errors of the library as `InvalidOption`.

    Errors of its HTTP client have no type of their own.
    """
    return replaced_errors(partial(_unreachable, hub))


@contextmanager
def hub_access(model: str) -> Iterator[None]:
    """Block access to the Hub, unless `model` is from there.

    Applies to this process and its children within the block.

    The library refuses each request then (`HF_HUB_OFFLINE=1`). A variable of the user stands.
    """
    if any(name in os.environ for name in _OFFLINE) or hub_model(model) is not None:
        yield
        return
    os.environ |= dict.fromkeys(_OFFLINE, "1")
    # The library reads the variable when it is imported, and this constant at every request.
    constants: Any = sys.modules.get("huggingface_hub.constants")
    before = None if constants is None else constants.HF_HUB_OFFLINE
    if constants is not None:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for name in _OFFLINE:
            os.environ.pop(name, None)
        constants = sys.modules.get("huggingface_hub.constants")
        if constants is not None:
            constants.HF_HUB_OFFLINE = bool(before)


def _library() -> Any:
    with extra_package("huggingface_hub", "A model of the Hugging Face Hub", "pip install 'forebay[llm]'"):
        import huggingface_hub  # noqa: PLC0415 - an extra
    library: Any = huggingface_hub
    # Its bars would be mixed with the lines of the run.
    library.utils.disable_progress_bars()
    return library


def _unreachable(hub: HubModel, error: Exception) -> Exception:
    return InvalidOption(
        f"model={hub.repo!r} is not a folder here, and the Hugging Face Hub does not give it as {hub} "
        f"({type(error).__name__}: {' '.join(str(error).split())}). Give a folder or a URI with config.json and "
        "safetensors, or the name of a model of the Hub: this machine needs a network then, or the model in its cache "
        "(HF_HOME), and a token for a model that asks for one (HF_TOKEN).",
        model=hub.repo,
    )
