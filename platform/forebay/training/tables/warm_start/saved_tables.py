"""Tables in a checkpoint, read without a model.

For the start of another run, and for exports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forebay.errors import CorruptFile, InvalidOption
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import readable_checkpoints
from forebay.training.checkpoint.parts.stored_state import StoredState, open_state
from forebay.training.tables.layout import TableLayout
from forebay.training.tables.owned_rows import DECAYED, WEIGHT, decayed
from forebay.training.tables.vocabulary.saved_rows import COUNTS, IDS, SEEN, SKETCH
from forebay.training.tables.warm_start.options import WarmStart


@contextmanager
def earlier_tables(start: WarmStart) -> Iterator[SavedTables]:
    """Open the checkpoint that `start` names.

    Raises `InvalidOption` if there is none, and `CorruptFile`.
    """
    files = readable_checkpoints(start.run)
    steps = files.complete_steps()
    step = start.step if start.step is not None else next(iter(steps), None)
    if step is None or step not in steps:
        there = f"It has steps {', '.join(map(str, sorted(steps)))}" if steps else "There is none"
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


_PIECE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """Rows of a saved table.

    `ids` [n], `seen` [n] from the end of its run on, and `tensors` by name.
    """

    ids: Tensor
    seen: Tensor
    tensors: Mapping[str, Tensor]


class SavedTables:
    """Tables of the checkpoint of `step`.

    `names` has all tables, and `optimizer_step` counts their steps.
    """

    def __init__(self, state: StoredState, step: int) -> None:
        self._state, self.step = state, step
        self._tables: Mapping[str, Any] = state.head.get("objects", {}).get("tables", {})
        self._rows_done = int(state.head.get("rows", 0))
        self.names = tuple(self._tables.get("rows", {}))
        self.optimizer_step = int(self._tables.get("step", 0))

    def shape(self, name: str) -> tuple[int, int]:
        """Return the rows and the width of a table."""
        facts = self._state.facts(self._leaves(name)[WEIGHT])
        assert facts is not None, "weights are a tensor"
        return facts[0][0], facts[0][1]

    def moments(self, name: str) -> set[str]:
        """Return the names of the state of rows."""
        return self._leaves(name).keys() - {WEIGHT, DECAYED, COUNTS, IDS, SEEN, SKETCH}

    def shared_row(self, name: str) -> Mapping[str, Tensor] | None:
        """Return the shared row, [1, ...] by name.

        None for a table that was not open.
        """
        opened = self._tables.get("open", {}).get(name)
        return None if opened is None else self._caught_up(name, dict(opened["shared"]))

    def padding_id(self, name: str) -> int | None:
        """Return the id that stands for no id, or None."""
        found: int | None = self._tables.get("padding", {}).get(name)
        return found

    def is_open(self, name: str) -> bool:
        """Whether a saved table has an open vocabulary."""
        return COUNTS in self._leaves(name)

    def span(self, name: str, first: int, stop: int) -> tuple[int, int]:
        """Return the row range of the shards `first` to `stop`."""
        if not self.is_open(name):
            layout = TableLayout(self.shape(name)[0])
            return layout.start_of(first), layout.start_of(stop)
        ends = [0, *self._state.tensor(self._leaves(name)[COUNTS]).cumsum(0).tolist()]
        return ends[first], ends[stop]

    def pieces(self, name: str, *, span: tuple[int, int] | None = None, with_state: bool = True) -> Iterator[RowPiece]:
        """Yield all rows of a table, or of a `span`.

        With the optimizer's state or without.
        """
        leaves, (total, _) = self._leaves(name), self.shape(name)
        unread = {COUNTS, SKETCH} | (set() if with_state else self.moments(name))
        first, stop = (0, total) if span is None else span
        for begin in range(first, stop, _PIECE_ROWS):
            end = min(begin + _PIECE_ROWS, stop)
            tensors = {key: self._state.rows(leaf, begin, end) for key, leaf in leaves.items() if key not in unread}
            if IDS in tensors:
                ids, seen = tensors.pop(IDS), tensors.pop(SEEN) - self._rows_done
            else:
                ids = torch.from_numpy(TableLayout(total).ids(begin, end))
                seen = torch.zeros_like(ids)
            yield RowPiece(ids=ids, seen=seen, tensors=self._caught_up(name, tensors))

    def _leaves(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._tables["rows"][name]
        return found

    def _caught_up(self, name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Decay the weights up to the end of the run."""
        if (before := tensors.pop(DECAYED, None)) is not None:
            opened = self._tables.get("open", {}).get(name)
            decay = self._tables["decay"][name] if opened is None else opened["decay"]
            tensors[WEIGHT] = decayed(tensors[WEIGHT], before, decay)
        return tensors
