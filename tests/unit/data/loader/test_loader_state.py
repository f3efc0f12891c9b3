"""The loader's state as trainers save it: length, state dict, `set_epoch`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

import forebay as fb
from forebay.errors import CursorMismatch, InvalidOption

Ids = Callable[[object], list[list[int]]]


@runtime_checkable
class LightningStateful(Protocol):
    """Protocol that Lightning's `CombinedLoader` requires of a dataloader that it saves and restores.

    Source: `_Stateful` in lightning/fabric/utilities/types.py, Lightning 2.2 and later.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def test_the_length_is_that_of_the_epoch_wherever_the_loader_stands(small: Any) -> None:
    with small.loader() as loader:
        whole = small.plan.num_batches(16)
        left = [(len(loader), loader.batches_left) for _ in loader]
        assert left == [(whole, whole - done) for done in range(1, whole)] + [(whole, whole)]
        loader.seek(fb.Cursor(plan_id=small.plan.id, epoch=0, position=160, global_batch=16))
        assert (len(loader), loader.batches_left) == (whole, 1)
    with small.loader(global_batch=50, last="drop") as loader:
        assert len(loader) == loader.batches_left == 3


def test_it_is_stateful_for_torch_and_lightning(small: Any) -> None:
    with small.loader() as loader:
        assert isinstance(loader, Stateful)
        assert isinstance(loader, LightningStateful)


def test_a_state_continues_at_another_world_and_is_the_same_on_every_rank(small: Any, epoch_ids: Ids) -> None:
    def state_after(batches: int, world: fb.World) -> Mapping[str, Any]:
        with small.loader(world=world) as loader:
            for _, _ in zip(range(batches), loader, strict=False):
                pass
            return json.loads(json.dumps(loader.state_dict()))

    (state,) = {json.dumps(state_after(4, fb.World(rank=rank, size=3))) for rank in range(3)}
    with small.loader() as loader:
        whole = epoch_ids(loader)
        loader.load_state_dict(json.loads(state))
        assert epoch_ids(loader) == whole[4:]
    ranks = []
    for rank in range(2):
        with small.loader(world=fb.World(rank=rank, size=2)) as loader:
            loader.load_state_dict(json.loads(state))
            ranks.append(epoch_ids(loader))
    together = [sorted(sum(parts, [])) for parts in zip(*ranks, strict=True)]
    assert together == [sorted(ids) for ids in whole[4:]]


def test_a_checkpoint_of_torch_keeps_and_restores_it(small: Any, epoch_ids: Ids, tmp_path: Path) -> None:
    with small.loader() as loader:
        whole = epoch_ids(loader)
        batches = iter(loader)
        first = epoch_ids([next(batches), next(batches)])
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        rest = epoch_ids(batches)
    with small.loader() as restored:
        dcp.load({"loader": restored}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        assert restored.epoch == 1
        assert epoch_ids(restored) == rest
    assert first + rest != whole, "two epochs, two orders"


def test_states_that_do_not_fit_are_refused(small: Any) -> None:
    with small.loader() as loader:
        state = loader.state_dict()
        other = fb.Loader(fb.build_plan(small.manifest, seed=8, lanes=6), small.transform, global_batch=16)
        with other, pytest.raises(CursorMismatch, match=r"made with plan .*seed=8.*[Gg]ive the same"):
            other.load_state_dict(state)
        with pytest.raises(CursorMismatch, match="not a cursor of version 1"):
            loader.load_state_dict({})
        with pytest.raises(CursorMismatch, match="no number below 0"):
            loader.load_state_dict(state | {"epoch": -1})
        with pytest.raises(CursorMismatch, match="outside"):
            loader.load_state_dict(state | {"position": small.plan.num_rows + 1})
        with pytest.raises(CursorMismatch, match="not a cursor"):
            loader.load_state_dict(None)  # type: ignore[arg-type]
        assert loader.state_dict() == state


def test_set_epoch_as_a_training_loop_calls_it(small: Any, epoch_ids: Ids) -> None:
    with small.loader() as loader:
        expected = [epoch_ids(loader) for _ in range(3)]
    with small.loader(epochs=3) as loader:
        found = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            found.append(epoch_ids(loader))
        assert found == expected
        loader.set_epoch(1)
        assert epoch_ids(loader) == expected[1]


def test_set_epoch_keeps_the_position_of_a_resumed_epoch(small: Any, epoch_ids: Ids) -> None:
    with small.loader() as loader:
        expected = epoch_ids(loader)
        loader.load_state_dict({"version": 1, "plan_id": small.plan.id, "epoch": 0, "position": 16, "global_batch": 16})
        loader.set_epoch(0)
        assert epoch_ids(loader) == expected[1:]


def test_set_epoch_after_an_early_end(small: Any, epoch_ids: Ids) -> None:
    threads = threading.active_count()
    with small.loader() as loader:
        for _ in loader:
            break
        assert loader.batches_left == len(loader) - 1
        loader.set_epoch(1)
        assert loader.cursor().position == 0
        again = epoch_ids(loader)
    with small.loader(epoch=1) as loader:
        assert epoch_ids(loader) == again
    assert threading.active_count() == threads


def test_set_epoch_refuses_what_it_cannot_do(small: Any) -> None:
    with small.loader() as loader:
        with pytest.raises(InvalidOption, match="epoch=-1: it must be a whole number of 0 or more"):
            loader.set_epoch(-1)
        batches = iter(loader)
        next(batches)
        with pytest.raises(InvalidOption, match=r"set_epoch\(2\) .*epoch 0, with 10 of 11 .*between two epochs"):
            loader.set_epoch(2)
        assert loader.batches_left == 10
        assert sum(1 for _ in batches) == 10


def test_a_trainer_that_counts_batches_never_asks_past_the_last(small: Any, epoch_ids: Ids) -> None:
    """A loop that takes `len(loader)` batches leaves its iterator suspended after the last one."""
    with small.loader() as loader:
        expected = [epoch_ids(loader) for _ in range(3)]
    with small.loader(epochs=3) as loader:
        found, iterators = [], []
        for epoch in range(3):
            loader.set_epoch(epoch)
            iterators.append(iter(loader))
            found.append(epoch_ids([next(iterators[-1]) for _ in range(len(loader))]))
        assert found == expected
