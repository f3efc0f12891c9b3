"""Laws of every `CheckpointStore`, whatever backend it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from forebay.data.plan.cursor import Cursor
from forebay.errors import BadJob
from forebay.training.checkpoint.checkpoint import Checkpoint, CheckpointStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import shard_file
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, read_region
from forebay.training.checkpoint.parts.table import TABLE, PartsTable, filled, named, table_text
from forebay.world import World


def checkpoint_at(step: int, **state: Any) -> Checkpoint:
    cursor = Cursor(plan_id="9c02", epoch=1, position=10 * step, global_batch=10)
    weight = torch.arange(8.0) + step
    return Checkpoint(
        step=step,
        cursor=cursor,
        world=World(rank=0, size=2),
        shards={0: {"weight": weight, **state}, 1: {"part": step}},
    )


def chunk_of(step: int, number: int) -> dict[str, LocalChunk]:
    """Chunks of part `number`.

    Rows `number - 1` of three of a tensor that is large enough for two blocks, and a small one only in part 1.
    """
    rows = torch.full((1, 300_000), float(10 * step + number))
    chunks = {"model.rows": LocalChunk(shape=(3, 300_000), offsets=(number - 1, 0), values=rows)}
    if number == 1:
        chunks["model.bias"] = LocalChunk(shape=(2,), offsets=(0,), values=torch.tensor([float(step), -1.0]))
    return chunks


def save_in_parts(ranks: Sequence[CheckpointStore], step: int) -> None:
    """Save the checkpoint of `step` in three parts.

    The first is rank 0's.
    """
    receipts = [store.save_part(step, number, chunk_of(step, number)) for number, store in enumerate(ranks, 1)]
    ranks[0].save(in_parts(step, receipts), receipts)


def in_parts(step: int, receipts: Sequence[PartReceipt]) -> Checkpoint:
    """Checkpoint of `step` with the parts of `receipts`."""
    table = table_text(receipts)
    state = {"model": {"rows": named("model.rows"), "bias": named("model.bias")}, TABLE: table}
    return replace(checkpoint_at(step), shards={0: state})


def read_in_parts(store: CheckpointStore, found: Checkpoint) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint in parts, as one rank."""
    table = PartsTable.in_state(found.shards[0])
    assert table is not None
    parts = table.open(lambda facts: store.read_part(found.step, facts))
    whole = {
        name: read_region(each, ((0,) * len(each.shape), each.shape), parts) for name, each in table.tensors.items()
    }
    return filled(found.shards[0]["model"], whole.__getitem__)


def newest_step(commits: CheckpointStore) -> int | None:
    found = commits.newest()
    return None if found is None else found.step


class CheckpointStoreLaws(ABC):
    """Laws of checkpoint stores, to subclass.

    The fixtures are `config` and `open`: the run's store as another process opens it.
    """

    @abstractmethod
    def open(self, config: CheckpointConfig) -> CheckpointStore: ...

    def test_nothing_saved_is_none(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            assert commits.newest() is None
            commits.flush()

    def test_another_process_finds_the_newest_bit_for_bit(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits, closing(self.open(config)) as other:
            for step in (1, 2, 120):
                saved = checkpoint_at(step, rng=[(3, None, "MT19937")], facts={"loss": 0.5})
                commits.save(saved)
                found = other.newest()
                assert found is not None
                assert (found.step, found.cursor, found.world) == (saved.step, saved.cursor, saved.world)
                assert torch.equal(found.shards[0]["weight"], saved.shards[0]["weight"])
                assert found.shards[0]["rng"] == [(3, None, "MT19937")]

    def test_only_the_shards_that_are_asked_for_are_read(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            commits.save(checkpoint_at(7))
            commits.flush()
        with closing(self.open(config)) as commits:
            for asked, found in ((None, {0, 1}), ({1}, {1}), ({0, 5}, {0}), ({5}, set())):
                newest = commits.newest(asked)
                assert newest is not None
                assert set(newest.shards) == found
            assert newest.step == 7

    def test_what_was_saved_or_found_is_a_copy(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            weight = torch.zeros(1000)
            commits.save(checkpoint_at(1, large=weight))
            weight += 1
            found = commits.newest()
            assert found is not None
            for step in (2, 3, 4):
                commits.save(checkpoint_at(step, large=weight * step))
            assert torch.equal(found.shards[0]["large"], torch.zeros(1000)), "a later commit changed what was restored"

    def test_a_larger_state_and_a_smaller_one(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            for step, size in enumerate([10, 600_000, 1, 1_200_000, 20], 1):
                commits.save(checkpoint_at(step, large=torch.full((size,), float(step))))
                found = commits.newest()
                assert found is not None and torch.equal(found.shards[0]["large"], torch.full((size,), float(step)))

    def test_going_back_gives_up_the_later_steps(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            for step in (100, 200, 300):
                commits.save(checkpoint_at(step))
            commits.flush()
            commits.save(checkpoint_at(250, note="again"))
            assert newest_step(commits) == 250
            commits.flush()
            assert max(CheckpointFiles(config).steps()) == 250
        with closing(self.open(config)) as commits:
            found = commits.newest()
            assert found is not None and found.shards[0]["note"] == "again"

    def test_the_same_step_again_replaces_it(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            for note in ("first", "second"):
                commits.save(checkpoint_at(7, note=note))
                commits.flush()
            found = commits.newest()
            assert found is not None and found.shards[0]["note"] == "second"
        stored = CheckpointFiles(config).read(7)
        stored.verify()

    def test_after_a_flush_storage_has_it(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            for step in range(1, 8):
                commits.save(checkpoint_at(step))
                if step % 3 == 0:
                    commits.flush()
                    assert CheckpointFiles(config).steps()[0] == step
                    CheckpointFiles(config).read(step).verify()

    def test_storage_keeps_the_last_and_the_multiples(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            for step in range(1, 14):
                commits.save(checkpoint_at(step))
            commits.flush()
        steps = CheckpointFiles(config).steps()
        assert {5, 10, 13} <= set(steps), "the multiples of keep_every and the newest"
        assert len(set(steps) - {5, 10}) <= 2

    def test_parts_of_all_ranks_are_one_checkpoint(self, config: CheckpointConfig) -> None:
        with (
            closing(self.open(config)) as first,
            closing(self.open(config)) as second,
            closing(self.open(config)) as third,
        ):
            ranks = [first, second, third]
            assert first.newest() is None, "rank 0 looks for a checkpoint before any is saved"
            for step in (1, 2, 3, 4):
                first.save_part(step, 1, chunk_of(step, 1))
                assert newest_step(first) == (step - 1 or None), "one part is no checkpoint"
                save_in_parts(ranks, step)
                found = first.newest({0})
                assert found is not None and found.step == step
                tensors = read_in_parts(second, found)
                assert tensors["rows"][:, 0].tolist() == [10.0 * step + number for number in (1, 2, 3)]
                assert tensors["bias"].tolist() == [step, -1.0]
            before = first.newest({0}, before=4)
            assert before is None or before.step < 4
            first.flush()
            stored = CheckpointFiles(config).read(4)
            stored.verify()
            assert set(stored.shards) == {0, 1, 2, 3}
            first.save(checkpoint_at(5))
            assert newest_step(first) == 5, "a checkpoint without parts follows"
            first.flush()
            assert CheckpointFiles(config).steps()[0] == 5

    def test_a_torn_upload_is_never_restored(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            commits.save(checkpoint_at(1))
            commits.flush()
        files = CheckpointFiles(config)
        files._fs.create_dir(files._folder(9), recursive=True)
        files._write(f"{files._folder(9)}/{shard_file(0)}", b"cut short")
        with closing(self.open(config)) as commits:
            assert newest_step(commits) == 1

    def test_a_state_that_could_not_be_read_back_is_refused(self, config: CheckpointConfig) -> None:
        with closing(self.open(config)) as commits:
            commits.save(checkpoint_at(1))
            with pytest.raises(BadJob, match="strange is a type"):
                commits.save(checkpoint_at(2, strange=object))
            assert newest_step(commits) == 1
