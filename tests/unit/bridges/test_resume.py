"""Law of bridges: stopped at any batch, a run goes on in another world with the rows of a run without a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import forebay as fb

STOP_AFTER = 5
EPOCHS = 2


class TorchRank:
    """A `DataLoader` over a dataset."""

    def __init__(self, data: fb.Data, folder: str, world: fb.World, state: Mapping[str, Any] | None) -> None:
        self.loader = fb.Loader(data, world=world)
        self.dataset = fb.bridges.torch.as_dataset(self.loader)
        self.batches = self.open()
        if state:
            (self.dataset if type(self) is TorchRank else self.batches).load_state_dict(state)

    def open(self) -> Any:
        return DataLoader(self.dataset, batch_size=None)

    def state(self) -> Mapping[str, Any]:
        return self.dataset.state_dict()

    def rows(self) -> Iterator[list[int]]:
        for _ in range(EPOCHS):
            for batch in self.batches if self.loader.epoch < EPOCHS else ():
                yield batch["id"].tolist()

    def close(self) -> None:
        self.loader.close()


class TorchdataRank(TorchRank):
    """A `StatefulDataLoader`, whose own state is saved."""

    def open(self) -> Any:
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        return stateful.StatefulDataLoader(self.dataset, batch_size=None)

    def state(self) -> Mapping[str, Any]:
        return self.batches.state_dict()


class PetastormRank:
    """A reader with petastorm's arguments."""

    def __init__(self, data: fb.Data, folder: str, world: fb.World, state: Mapping[str, Any] | None) -> None:
        self.reader = fb.bridges.petastorm.make_batch_reader(
            folder,
            batch_size=data.global_batch // world.size,
            transform=data.transform,
            seed=7,
            num_epochs=EPOCHS,
            cur_shard=world.rank,
            shard_count=world.size,
        )
        if state:
            self.reader.load_state_dict(state)

    def state(self) -> Mapping[str, Any]:
        return self.reader.state_dict()

    def rows(self) -> Iterator[list[int]]:
        yield from (batch.id.tolist() for batch in self.reader)

    def close(self) -> None:
        self.reader.stop()


def open_ranks(kind: Any, data: fb.Data, folder: str, size: int, state: Mapping[str, Any] | None) -> list[Any]:
    return [kind(data, folder, fb.World(rank=rank, size=size), state) for rank in range(size)]


def joined(ranks: list[Iterator[list[int]]]) -> Iterator[list[int]]:
    """Sorted ids of each global batch."""
    for parts in zip_longest(*ranks):
        assert len({len(part) for part in parts}) == 1, "all ranks have equally many rows of every batch"
        yield sorted(row_id for part in parts for row_id in part)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(TorchRank, 4, 1), (TorchRank, 2, 4), (TorchdataRank, 1, 2), (PetastormRank, 2, 1)],
)
def test_a_run_goes_on_in_another_world(
    data: fb.Data, folder: str, calm_ids: list[list[int]], kind: Any, before: int, after: int
) -> None:
    ranks = open_ranks(kind, data, folder, before, None)
    rows = [rank.rows() for rank in ranks]
    done = list(islice(joined(rows), STOP_AFTER))
    states = [rank.state() for rank in ranks]
    assert all(state == states[0] for state in states)
    for each in rows:
        each.close()
    others = open_ranks(kind, data, folder, after, states[-1])
    rest = list(joined([rank.rows() for rank in others]))
    for rank in [*ranks, *others]:
        rank.close()
    assert done + rest == calm_ids


KILLED = """
import json, sys
from torch.utils.data import DataLoader
import forebay as fb

folder, global_batch = sys.argv[1], int(sys.argv[2])
transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]), labels=fb.Label("x1"))
plan = fb.build_plan(fb.scan(folder), seed=7)
dataset = fb.bridges.torch.as_dataset(fb.Loader(plan, transform, global_batch=global_batch, last="drop"))
for batch in DataLoader(dataset, batch_size=None):
    print(json.dumps([sorted(batch["id"].tolist()), dataset.state_dict()]), flush=True)
    sys.stdin.readline()
"""


def test_a_killed_loop_goes_on_with_two_ranks(data: fb.Data, folder: str, calm_ids: list[list[int]]) -> None:
    command = [sys.executable, "-c", KILLED, folder, str(data.global_batch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        for number in range(STOP_AFTER):
            done, state = json.loads(process.stdout.readline())
            assert done == calm_ids[number]
            process.stdin.write("\n" * (number < STOP_AFTER - 1))
            process.stdin.flush()
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    ranks = open_ranks(TorchRank, data, folder, 2, state)
    assert list(joined([rank.rows() for rank in ranks])) == calm_ids[STOP_AFTER:]
    for rank in ranks:
        rank.close()


def test_distributed_checkpoints_hold_the_cursor(
    data: fb.Data, folder: str, calm_ids: list[list[int]], tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    (rank,) = open_ranks(TorchRank, data, folder, 1, None)
    rows = rank.rows()
    assert [sorted(next(rows)) for _ in range(STOP_AFTER)] == calm_ids[:STOP_AFTER]
    checkpoint.save({"data": rank.dataset}, checkpoint_id=tmp_path / "step-5")
    rows.close()
    (other,) = open_ranks(TorchRank, data, folder, 1, None)
    checkpoint.load({"data": other.dataset}, checkpoint_id=tmp_path / "step-5")
    assert [sorted(each) for each in other.rows()] == calm_ids[STOP_AFTER:]
    for each in (rank, other):
        each.close()
