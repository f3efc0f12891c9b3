"""Embedding table as a module of a model.

Its rows are shared by all ranks, and are not parameters of the model.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from forebay.errors import BadJob, InvalidOption
from forebay.training.tables.exchange.lookups import fetch_together
from forebay.training.tables.layout import NUM_SHARDS
from forebay.training.tables.lookup.bad_ids import MOST_NAMED, BeyondTable
from forebay.training.tables.lookup.bags import Bags, WantedIds, bags_of, require_whole
from forebay.training.tables.lookup.batch_features import BatchFeatures
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.tables.vocabulary.open_rows import OpenRows

Pool = Literal["sum", "mean"]
BadIds = Literal["error", "row 0"]


class Table(nn.Module):
    """Embedding table of `rows` rows of `dim` numbers.

    Anywhere in a model that `Worker.setup` gets.

    Call it as `nn.Embedding` or `nn.EmbeddingBag`. The rows lie on one rank or on all, as `Tables` in the setup says.
    They are neither parameters nor buffers: the optimizer of `Tables` trains them. All ranks must call it equally often
    and in the same order, also in evaluation.

    Args:
        rows: Number of rows. Ids are 0 to `rows - 1`. With `admission`, the most rows of the table, in 64 equal shares.
        dim: Width of a row.
        padding_id: Id that stands for no id: its row is zero, it is not trained, and counts in no bag.
        bad_ids: Rule for ids beyond the table: "error", or "row 0" to look up row 0 (none if it is `padding_id`) and to
            count them.
        scale: Start values are uniform from `-scale` to `scale`, and a function of seed, table and id.
        admission: Rule by which ids get rows. Then ids are any int64. None: each of the `rows` ids has its row.

    Raises `InvalidOption` for values that can never work.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        padding_id: int | None = None,
        bad_ids: BadIds = "error",
        scale: float = 0.05,
        admission: Admission | None = None,
    ) -> None:
        super().__init__()
        if rows < 1 or dim < 1:
            raise InvalidOption(f"Table(rows={rows}, dim={dim}): give at least 1 of each.", rows=rows, dim=dim)
        if bad_ids not in {"error", "row 0"}:
            raise InvalidOption(f"Table(bad_ids={bad_ids!r}): choose 'error' or 'row 0'.", bad_ids=bad_ids)
        if admission is not None and (rows < NUM_SHARDS or bad_ids != "error"):
            raise InvalidOption(
                f"Table(rows={rows}, bad_ids={bad_ids!r}) has admission=. Give {NUM_SHARDS} rows or more, and leave "
                "bad_ids out: no id is beyond an open table.",
                rows=rows,
            )
        self.rows, self.dim, self.padding_id, self.bad_ids, self.scale = rows, dim, padding_id, bad_ids, scale
        self.admission = admission
        self.shared: SharedRows | OpenRows | None = None
        """Rows in the world of this process, since `Worker.setup`."""
        self.features: BatchFeatures | None = None
        """Names of the arrays that the model is called with, since `Worker.setup`."""
        self._looked_up: dict[str, None] = {}

    def forward(
        self, ids: Tensor, lengths: Tensor | None = None, *, offsets: Tensor | None = None, pool: Pool | None = None
    ) -> Tensor:
        """Return the float32 rows of `ids`, or pooled bags.

        Args:
            ids: Integers of any shape [...]. Bags are the rows of ids [n, k], or parts of ids [m].
            lengths: Number of ids of each bag [n]: the first ones of each row of ids [n, k], as a `Ragged` feature has
                them, or successive ones of ids [m].
            offsets: First id of each bag [n] of ids [m], as in `nn.EmbeddingBag`.
            pool: "sum" or "mean" of a bag. An empty bag is zero. None: the row of each id, [..., dim].

        Raises `InvalidOption` for ids that are not integers, and for bags that do not fit them. Raises `BadJob` before
        `Worker.setup`, and for ids beyond the table, unless `bad_ids` is "row 0". That one is raised on all ranks:
        here, or at `optimizer.step()` if the lookup trains a replicated table.
        """
        return look_up(Lookup(self, ids, lengths, offsets=offsets, pool=pool))[0]

    def note_feature(self, ids: Tensor) -> None:
        """Remember the array that has `ids`, for monitors' texts.

        In the first call of the model.
        """
        if self.features is not None and self.features.is_first_call:
            self._looked_up[self.features.name_of(ids)] = None

    def feature_text(self) -> str:
        """Return the arrays whose ids are looked up, as words.

        Empty if that is not known.
        """
        return " and ".join(filter(None, self._looked_up))

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.dim}"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Arguments of one `Table.forward`, for `look_up`."""

    table: Table
    ids: Tensor
    lengths: Tensor | None = None
    _: KW_ONLY
    offsets: Tensor | None = None
    pool: Pool | None = None

    @property
    def shared(self) -> SharedRows | OpenRows:
        """Rows of the table. Raises `BadJob` before `Worker.setup`."""
        table = self.table
        if table.shared is None:
            raise BadJob(
                f"Table({table.rows}, {table.dim}) was called before worker.setup(), which places its rows. Give the "
                "model to worker.setup(model, optimizer, tables=...) first, and call the one that it returns."
            )
        return table.shared

    def wanted(self) -> WantedIds:
        """Return the ids whose rows are needed.

        Notes those beyond the table, so that all ranks raise the error.
        """
        ids, shared = self.ids, self.shared
        require_whole("ids", ids)
        self.table.note_feature(ids)
        bags = None if self.pool is None else bags_of(ids, self.lengths, self.offsets, self.pool)
        if bags is None and (self.lengths is not None or self.offsets is not None):
            raise InvalidOption("lengths and offsets divide ids into bags, and pool= was not given. Give pool='sum'.")
        flat = ids.reshape(-1).long()
        used = torch.ones_like(flat, dtype=torch.bool) if bags is None else bags.used
        if self.table.padding_id is not None:
            used = used & (flat != self.table.padding_id)
        positions = None if bool(used.all()) else used.nonzero()[:, 0]
        wanted = flat if positions is None else flat[positions]
        if self.table.training:
            shared.use.last_ids = wanted
        valid = self._valid(wanted, positions, bags)
        if valid is not wanted and self.table.padding_id == 0:  # Ids beyond the table look up no id.
            kept = valid.nonzero()[:, 0]
            valid, positions = valid[kept], kept if positions is None else positions[kept]
        return WantedIds(valid, positions, bags, ids.shape)

    def _valid(self, wanted: Tensor, positions: Tensor | None, bags: Bags | None) -> Tensor:
        """Replace ids beyond the table by row 0.

        `wanted` are the ids at `positions` of `ids`.
        """
        table, ids, shared = self.table, self.ids, self.shared
        if table.admission is not None or not len(wanted):
            return wanted
        lowest, highest = torch.aminmax(wanted)
        if lowest >= 0 and highest < table.rows:
            return wanted
        bad = (wanted < 0) | (wanted >= table.rows)
        assert isinstance(shared, SharedRows), "an open table takes any id"
        if table.bad_ids == "row 0":
            shared.use.bad += int(bad.sum())
        else:
            where = bad.nonzero()[:, 0]
            first = where[:MOST_NAMED] if positions is None else positions[where[:MOST_NAMED]]
            columns = first % ids.shape[-1] if ids.dim() > 1 else first[:0]
            rows = first // ids[0].numel() if ids.dim() > 1 else first if bags is None else bags.bag_of[first]
            beyond = BeyondTable(
                rank=shared.rank,
                feature="" if table.features is None else table.features.name_of(ids),
                bad=len(where),
                looked_up=len(wanted),
                ids=wanted[where[:MOST_NAMED]].tolist(),
                rows=rows.tolist(),
                columns=columns.tolist(),
            )
            shared.refuse(beyond)
        return wanted.masked_fill(bad, 0)


def look_up(*lookups: Lookup) -> list[Tensor]:
    """Return what each table returns for its ids.

    The tables share their messages.

    The result is bit-equal to one call of a table after the other. All ids are checked before the first message.
    All ranks must give lookups of the same tables in the same order. Hooks of the tables do not run.

    Raises what `Table.forward` raises.
    """
    wanted = [each.wanted() for each in lookups]
    rows = fetch_together([(each.shared, found.ids) for each, found in zip(lookups, wanted, strict=True)])
    return [found.result(each) for found, each in zip(wanted, rows, strict=True)]
