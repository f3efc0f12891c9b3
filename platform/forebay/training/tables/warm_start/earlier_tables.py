"""Checkpoint of an earlier run whose tables another run starts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.errors import CorruptFile, InvalidOption
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.readable import readable_checkpoints
from forebay.training.checkpoint.parts.stored_state import open_state
from forebay.training.tables.warm_start.options import WarmStart
from forebay.training.tables.warm_start.saved_tables import SavedTables


@contextmanager
def earlier_tables(start: WarmStart) -> Iterator[SavedTables]:
    """Open the checkpoint that `start` names. Raises `InvalidOption` if there is none, and `CorruptFile`."""
    files = readable_checkpoints(start.run)
    steps = files.complete_steps()
    step = start.step if start.step is not None else next(iter(steps), None)
    if step is None or step not in steps:
        there = f"It has those of steps {', '.join(map(str, sorted(steps)))}" if steps else "There is none"
        raise InvalidOption(
            f"WarmStart(run={start.run!r}, step={start.step}) found no such checkpoint. {there}. Give the folder of a "
            "run with a checkpoint: the storage of its job, and its name.",
            run=start.run,
        )
    try:
        with open_state(files, step) as state:
            yield SavedTables(state, step)
    except CorruptCheckpoint as error:
        raise CorruptFile(f"the checkpoint {files.uri_of(step)} is corrupt: {error}.", step=step) from error
