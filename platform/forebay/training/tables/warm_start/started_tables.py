"""Start of a model's tables from an earlier run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from forebay.errors import InvalidOption
from forebay.training.collectives.collective import Collective
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.open_rows import OpenRows
from forebay.training.tables.vocabulary.shards import shard_bounds
from forebay.training.tables.warm_start.options import WarmStart
from forebay.training.tables.warm_start.saved_tables import SavedTables


class StartedTables:
    """Tables of a new run, by name, on one rank.

    All ranks call `take_over` alike.
    """

    def __init__(self, shared: Mapping[str, SharedRows | OpenRows], collective: Collective, start: WarmStart) -> None:
        self._shared, self._collective, self._start = shared, collective, start
        if unknown := sorted({*start.tables, *start.ids} - shared.keys()):
            raise InvalidOption(
                f"WarmStart names {', '.join(unknown)}, and the model has the tables {', '.join(shared)}.",
                unknown=unknown,
            )

    def take_over(self, earlier: SavedTables) -> list[str]:
        """Take over rows.

        Returns one line for each table of either side: what goes on, and what does not.
        """
        lines = [self._line(name, earlier) for name in self._shared]
        used = {self._start.tables.get(name, name) for name in self._shared}
        lines += [
            f"table {name!r} of {self._start.run} is not in this model" for name in sorted({*earlier.names} - used)
        ]
        return lines

    def _line(self, name: str, earlier: SavedTables) -> str:
        source, shared = self._start.tables.get(name, name), self._shared[name]
        if source not in earlier.names:
            return f"table {name!r} starts new: {self._start.run} has no table {source!r}"
        rows, dim = earlier.shape(source)
        if dim != shared.facts.dim:
            return f"table {name!r} starts new: its rows have {shared.facts.dim} numbers, and {dim} in the earlier run"
        taken = self._take(name, earlier, source)
        line = f"table {name!r} has {taken:,} of {rows:,} rows of {source!r}, {self._start.run}, step {earlier.step}"
        wanted = set(shared.owned.optimizer.moments)
        if missing := sorted(wanted - earlier.moments(source)):
            line += f"; {', '.join(missing)} of its optimizer starts from 0"
        return line

    def _take(self, name: str, earlier: SavedTables, source: str) -> int:
        """Take over the rows that this rank holds.

        Returns the number of rows over all ranks, each counted once.
        """
        shared, taken = self._shared[name], 0
        if isinstance(shared, OpenRows) and (row := earlier.shared_row(source)) is not None:
            shared.take_shared_row(row)
        for piece in earlier.pieces(source, span=self._span(name, earlier, source)):
            ids, is_known = self._start.renamed(name, piece.ids.numpy())
            kept = torch.from_numpy(np.flatnonzero(is_known))
            tensors = {key: values[kept] for key, values in piece.tensors.items()}
            taken += shared.take(torch.from_numpy(ids)[kept], piece.seen[kept], tensors)
        return int(self._collective.all_reduce(np.array([taken]))[0])

    def _span(self, name: str, earlier: SavedTables, source: str) -> tuple[int, int] | None:
        """Return the saved rows that this rank reads.

        None for all rows.

        A rank owns whole shards. Equal ids are in the same shard of tables of any size, if both are open, or neither.
        """
        shared, world = self._shared[name], self._collective.world
        is_open = isinstance(shared, OpenRows)
        if shared.placement != "rows" or name in self._start.ids or is_open != earlier.is_open(source):
            return None
        bounds = shard_bounds(world.size)
        return earlier.span(source, bounds[world.rank], bounds[world.rank + 1])
