"""Earlier run whose tables a new run starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Start of tables from an earlier run.

    For `Tables(optimizer, start=WarmStart(run=...))`.

    Rows go to the tables of the same name and to the same ids, with their state. What the earlier run does not have
    starts as in any run. It is read once: a run that has a checkpoint of its own goes on from that.

    Attributes:
        run: Folder of the earlier run, on any storage: its job's storage, and its name.
        step: Step of its checkpoint. None: the newest.
        tables: Name of a table in the earlier run, by its name here, where they differ.
        ids: Pairs of an id here and its id in the earlier run, int64 [n, 2], by name of the table here. Other ids of
            such a table start as in any run.

    Raises `InvalidOption` for values that can never work.
    """

    run: str
    step: int | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, pairs in self.ids.items():
            if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.int64:
                raise InvalidOption(
                    f"WarmStart(ids=...) has {pairs.dtype} {list(pairs.shape)} for table {name!r}. Give pairs of an id "
                    "here and one of the earlier run: int64 [n, 2].",
                    table=name,
                )
            if any(len(np.unique(column)) != len(pairs) for column in pairs.T):
                raise InvalidOption(
                    f"WarmStart(ids=...) has an id twice for table {name!r}. Give each id once on either side.",
                    table=name,
                )

    def renamed(self, name: str, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Translate `ids` [n] of the earlier run.

        Also returns which of them have an id here.
        """
        if name not in self.ids:
            return ids, np.ones(len(ids), np.bool_)
        pairs = self.ids[name][np.argsort(self.ids[name][:, 1])]
        if not len(pairs):
            return ids, np.zeros(len(ids), np.bool_)
        positions = np.searchsorted(pairs[:, 1], ids).clip(max=len(pairs) - 1)
        return pairs[positions, 0], pairs[positions, 1] == ids
