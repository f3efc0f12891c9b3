"""Ids beyond a table, and their error on all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

import torch

from forebay.errors import BadJob
from forebay.training.collectives.tensor_collectives import TensorCollectives
from forebay.training.tables.owned_rows import TableFacts

MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondTable:
    """Ids of one lookup that are beyond the table.

    Attributes:
        rank: The rank.
        feature: Name of the batch's array that was looked up, or an empty text.
        bad: Number of ids beyond the table, of `looked_up`.
        ids: The first of them, at most `MOST_NAMED`.
        rows: The row of each one in the rank's part of the batch.
        columns: The column of each one, or empty for ids without columns.
    """

    rank: int
    feature: str
    bad: int
    looked_up: int
    ids: Sequence[int]
    rows: Sequence[int]
    columns: Sequence[int]

    def __str__(self) -> str:
        positions = [f"row {row}" for row in self.rows]
        if self.columns:
            positions = [f"{row}, column {column}" for row, column in zip(positions, self.columns, strict=True)]
        named = "; ".join(f"{each} in {position}" for each, position in zip(self.ids, positions, strict=True))
        more = "; and others" if self.bad > len(self.ids) else ""
        of = f" of {self.feature}" if self.feature else ""
        return f"rank {self.rank}: {self.bad:,} of {self.looked_up:,} ids{of}: {named}{more}"


def raise_on_all_ranks(
    tensors: TensorCollectives, table: TableFacts, own: BeyondTable | None, device: torch.device
) -> NoReturn:
    """Raise the same `BadJob` on all ranks.

    All of them call it together.

    `own` are bad ids of this rank, if it has some.
    """
    text = b"" if own is None else json.dumps(asdict(own)).encode()
    sent = torch.tensor(list(text), dtype=torch.uint8, device=device).repeat(tensors.world_size)
    received, sizes = tensors.exchange(sent, [len(text)] * tensors.world_size)
    parts = torch.split(received.cpu(), list(sizes))
    found = [BeyondTable(**json.loads(bytes(part.tolist()))) for part in parts if len(part)]
    first, each_rank = found[0], ". On ".join(map(str, found))
    raise BadJob(
        f"table {table.name!r} has {table.rows:,} rows, and ids are beyond it. On {each_rank}. Give the table more "
        f"rows, map the ids to 0 to {table.rows - 1}, or set bad_ids='row 0'.",
        table=table.name,
        bad=sum(each.bad for each in found),
        rank=first.rank,
        feature=first.feature,
        row=first.rows[0],
        id=first.ids[0],
    )
