"""Runs of a storage, found by their names."""

from __future__ import annotations

from collections.abc import Iterator

from pyarrow.fs import FileType

from forebay.errors import InvalidOption
from forebay.runtime.formatting import did_you_mean
from forebay.runtime.uris import split_options, with_options
from forebay.storage.filesystem import Location, resolve
from forebay.storage.globs import children
from forebay.training.checkpoint.config import FOLDER as CHECKPOINTS
from forebay.training.runs.run_folder import RunFolder

_RECORDS = ("timeline.json", "result.json", "sweep.json", "order.json", CHECKPOINTS)
"""Files and a folder, any of which makes the folder of a run or a sweep. Their modules import torch."""
_NUM_NAMED = 10


def has_run(storage: str, name: str) -> bool:
    """Whether a run or a sweep of this name was started there."""
    return _is_recorded(RunFolder.below(storage, name).location)


def storage_of(folder: RunFolder) -> str:
    """Return the storage of a run: the folder of its folder."""
    path, options = split_options(folder.uri)
    parent = path.rstrip("/").rpartition("/")[0]
    return with_options(parent or "/", options)


def no_run(storage: str, name: str) -> InvalidOption:
    """Error for a name that no run of a storage has."""
    location = resolve(storage)
    runs = sorted(_runs_of(location))
    more = f" and {len(runs) - _NUM_NAMED} more" if len(runs) > _NUM_NAMED else ""
    seen = f"Its runs are {', '.join(runs[:_NUM_NAMED])}{more}" if runs else "It has no runs"
    return InvalidOption(
        f"there is no run {name!r} in {location.uri}.{did_you_mean(name, runs)} {seen}. Give one of them, or another "
        "storage.",
        name=name,
    )


def _runs_of(storage: Location) -> Iterator[str]:
    for info in children(storage.fs, storage.path):
        if info.type == FileType.Directory and _is_recorded(storage._replace(path=info.path)):
            yield info.base_name


def _is_recorded(folder: Location) -> bool:
    paths = [f"{folder.path.rstrip('/')}/{name}" for name in _RECORDS]
    return any(info.type != FileType.NotFound for info in folder.fs.get_file_info(paths))
