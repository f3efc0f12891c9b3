"""Checkpoints that all ranks save and find together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from forebay.training.checkpoint.checkpoint import Checkpoint, CheckpointStore
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.parts.part import PartReceipt, read_region
from forebay.training.checkpoint.parts.table import TABLE, PartsTable, filled, table_text
from forebay.training.collectives.collective import Collective
from forebay.training.state.evaluations import best_of
from forebay.training.state.snapshot import WHOLE, Snapshot
from forebay.training.strategies.flat_part import FlatPart
from forebay.training.strategies.sharded_state import split_shards
from forebay.training.strategies.strategy import Strategy
from forebay.training.worker.rank_zero import broadcast_from_rank_zero, combined

log = logging.getLogger(__name__)


class RankCheckpoints:
    """Checkpoints of one rank. All ranks call every method alike.

    Rank 0 saves and reads what all ranks have. Of sharded tensors, each rank saves its own part, and reads what it
    needs of the parts of any world.
    """

    def __init__(self, collective: Collective, store: CheckpointStore) -> None:
        self._collective, self._store = collective, store
        self._contents: dict[int, str] = {}
        self._sent_contents: str | None = None
        self.strategy: Strategy | None = None
        """Strategy that lays out the tensors that are read."""

    def reserve(self, num_whole_bytes: Callable[[], int], objects: Callable[[], Mapping[str, Any]]) -> None:
        """Allocate memory for checkpoints of this size, during training.

        Rank 0 saves what all ranks have, and each rank its part of sharded `objects`.
        """
        if self.strategy is None:
            return
        if self.strategy.is_sharded:
            num_bytes = sum(each.values.nbytes for each in split_shards(objects())[1].values())
            self._store.reserve_part(self._collective.world.rank + 1, num_bytes)
        elif self._collective.world.is_first:
            self._store.reserve(num_whole_bytes())

    def raise_failed(self) -> None:
        """Raise on rank 0 if a saved checkpoint could not be written."""
        if self._collective.world.is_first:
            self._store.raise_failed()

    def settle(self) -> None:
        """Return on all ranks once every saved checkpoint is written.

        Raises if one could not be.
        """
        broadcast_from_rank_zero(partial(self._store.raise_failed, wait=True), self._collective)

    def save(self, snapshot_of: Callable[[], Snapshot]) -> None:
        """Save the snapshot that `snapshot_of` returns."""
        world = self._collective.world
        is_sharded = self.strategy is not None and self.strategy.is_sharded
        if not (world.is_first or is_sharded):
            return
        snapshot = snapshot_of()
        rest, chunks = split_shards(snapshot.objects) if is_sharded else (snapshot.objects, {})
        if not chunks:
            if world.is_first:
                self._store.save(snapshot.to_checkpoint(world))
            return
        receipts = self._receipts(partial(self._store.save_part, snapshot.step, world.rank + 1, chunks))
        if world.is_first:
            checkpoint = replace(snapshot, objects=rest).to_checkpoint(world)
            state = {**checkpoint.shards[WHOLE], TABLE: table_text(receipts)}
            self._store.save(replace(checkpoint, shards={WHOLE: state}), receipts)
        best = best_of(snapshot.evaluations)
        if best is not None and best.step == snapshot.step:
            self.flush()  # the memory of nodes has parts of the newest steps only

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, or None.

        Its tensors are as this rank holds them.

        Raises as `CheckpointStore.newest`.
        """
        before: int | None = None
        while True:
            # In a thread of rank 0: storage may take longer than a collective's timeout.
            read = partial(self._store.newest, {WHOLE}, before=before)
            checkpoint = broadcast_from_rank_zero(read, self._collective)
            table = None if checkpoint is None else PartsTable.in_state(checkpoint.shards[WHOLE])
            if checkpoint is None or table is None:
                return checkpoint
            found: dict[str, Tensor | FlatPart] = {}
            reason = combined(partial(self._read_tensors, checkpoint.step, table, found), _first, self._collective)
            if not reason:
                state = {key: value for key, value in checkpoint.shards[WHOLE].items() if key != TABLE}
                return replace(checkpoint, shards={WHOLE: filled(state, found.__getitem__)})
            before = checkpoint.step
            log.warning("The checkpoint of step %d is corrupt (%s); looking for the one before it.", before, reason)

    def flush(self) -> None:
        """Return once the newest saved checkpoint is in storage.

        Raises `WriteFailed`.
        """
        broadcast_from_rank_zero(self._store.flush, self._collective)

    def _receipts(self, write: Callable[[], PartReceipt]) -> list[PartReceipt]:
        """Return the receipts of all ranks, on rank 0.

        Contents that equal the previous checkpoint's are not sent again.
        """
        receipts = list[PartReceipt]()

        def written() -> PartReceipt:
            receipt, before = write(), self._sent_contents
            self._sent_contents = receipt.contents
            return replace(receipt, contents="") if receipt.contents == before else receipt

        def keep(found: Sequence[PartReceipt]) -> None:
            self._contents |= {each.number: each.contents for each in found if each.contents}
            receipts.extend(replace(each, contents=self._contents[each.number]) for each in found)

        combined(written, keep, self._collective)
        return receipts

    def _read_tensors(self, step: int, table: PartsTable, found: dict[str, Tensor | FlatPart]) -> str:
        """Add this rank's tensors to `found`, by name.

        Returns the reason if a part is corrupt, or an empty text.
        """
        assert self.strategy is not None, "setup() comes first"
        try:
            parts = table.open(lambda facts: self._store.read_part(step, facts))
            for name, tensor in table.tensors.items():
                read = partial(read_region, tensor, parts=parts)
                found[name] = self.strategy.restored(name, tensor.shape, read)
        except CorruptCheckpoint as error:
            return str(error)
        return ""


def _first(reasons: Sequence[str]) -> str:
    """Return the first text that is not empty."""
    return next((each for each in reasons if each), "")
