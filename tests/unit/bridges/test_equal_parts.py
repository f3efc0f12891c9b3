from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import forebay as fb
from forebay.bridges.equal_parts import has_equal_parts, validate_equal_parts
from forebay.errors import CursorMismatch, InvalidOption


@pytest.mark.parametrize("lanes", [6, 12, 16])
def test_the_check_knows_the_parts_of_every_batch(data: fb.Data, lanes: int) -> None:
    plan = fb.build_plan(data.plan.manifests[0], seed=7, lanes=lanes)
    for size in (2, 3, 4):
        owned = [plan.owned_lanes(fb.World(rank=rank, size=size)) for rank in range(size)]
        for rows in (6, 8, 12, 16, 24, 30):
            starts = range(lanes)
            counts = [
                [len(plan.positioned_rows(0, start, start + rows, each).row) for each in owned] for start in starts
            ]
            assert has_equal_parts(plan, global_batch=rows, world_size=size) == all(
                left == right for each in counts for left, right in pairwise(each)
            )


@pytest.mark.parametrize(
    ("rows", "last", "size", "said"),
    [
        (32, "balance", 2, 'Give last="drop"'),
        (31, "drop", 2, r"Give global_batch=32\."),
        (32, "drop", 3, r"Give global_batch=36 and fb.build_plan\(..., lanes=18\)"),
    ],
)
def test_unequal_parts_are_refused_with_the_fix(data: fb.Data, rows: int, last: str, size: int, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        validate_equal_parts(data.plan, global_batch=rows, last=last, world_size=size)  # type: ignore[arg-type]
    plan = fb.build_plan(data.plan.manifests[0], lanes=18) if size == 3 else data.plan
    validate_equal_parts(plan, global_batch=36 if size == 3 else 32, last="drop", world_size=size)


def test_a_mixture_is_refused_for_several_ranks(data: fb.Data) -> None:
    mixture = fb.Mixture({"a": data.plan, "b": data.plan})
    validate_equal_parts(mixture, global_batch=32, last="drop", world_size=1)
    with pytest.raises(InvalidOption, match="mixture"):
        validate_equal_parts(mixture, global_batch=32, last="drop", world_size=2)


@pytest.mark.parametrize(("rows", "is_exact"), [(32, True), (20, False)])
def test_unequal_parts_bias_the_mean_over_ranks(
    open_loader: Callable[..., fb.Loader], rows: int, is_exact: bool
) -> None:
    """Avoided: three ranks of 16 lanes, or 20 rows a batch, average to something else than the batch."""
    size = 4 if is_exact else 3
    means: list[list[float]] = []
    weighted: list[list[float]] = []
    for rank in range(size):
        with open_loader(rank, size, global_batch=rows) as loader:
            parts = [(float(batch["labels"].double().mean()), batch.weight) for batch in loader]
        means.append([mean for mean, _ in parts])
        weighted.append([mean * weight for mean, weight in parts])
    with open_loader(global_batch=rows) as loader:
        whole = [float(batch["labels"].double().mean()) for batch in loader]
    assert np.allclose(np.mean(weighted, axis=0), whole, atol=1e-9)
    assert np.allclose(np.mean(means, axis=0), whole, atol=1e-9) == is_exact
    with open_loader(0, size, global_batch=rows) as loader:
        if is_exact:
            fb.bridges.torch.as_dataset(loader)
        else:
            with pytest.raises(InvalidOption, match="without batch.weight"):
                fb.bridges.torch.as_dataset(loader)


def test_worker_processes_are_refused(open_loader: Callable[..., fb.Loader]) -> None:
    with open_loader() as loader:
        batches = DataLoader(fb.bridges.torch.as_dataset(loader), batch_size=None, num_workers=1)
        iterator: Any = iter(batches)
        with pytest.raises(InvalidOption, match="num_workers=1"):
            next(iterator)
        iterator._shutdown_workers()


def test_only_a_loader_becomes_a_data_set(data: fb.Data) -> None:
    with pytest.raises(InvalidOption, match=r"give an fb\.Loader"):
        fb.bridges.torch.as_dataset(data)  # type: ignore[arg-type]


def by_torch(loader: fb.Loader, _: fb.Data) -> Any:
    return fb.bridges.torch.as_dataset(loader)


def by_hf(loader: fb.Loader, _: fb.Data) -> Any:
    """Trainer without a model that gets the cursor of its checkpoint."""

    class Begun:
        def __init__(self) -> None:
            self.args = SimpleNamespace(
                process_index=loader.world.rank,
                world_size=loader.world.size,
                ignore_data_skip=True,
                gradient_accumulation_steps=1,
            )

        def add_callback(self, callback: Any) -> None: ...

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seek(fb.Cursor.from_dict(state))  # type: ignore[attr-defined]

    pytest.importorskip("transformers")
    return type("BegunTrainer", (fb.bridges.hf.TrainerMixin, Begun), {})(train_loader=loader)


def by_lightning(loader: fb.Loader, data: fb.Data) -> Any:
    pytest.importorskip("lightning")
    module = fb.bridges.lightning.data_module(data)
    module.trainer = SimpleNamespace(global_rank=loader.world.rank, world_size=loader.world.size, global_step=3)
    if loader.world.size > 1:
        module.train_dataloader()
    restore = module.load_state_dict
    module.load_state_dict = lambda state: restore({"cursor": state})
    return module


def by_petastorm(loader: fb.Loader, _: fb.Data) -> Any:
    folder, size = loader.plan.manifests[0].root, loader.world.size  # type: ignore[attr-defined]
    options = {"cur_shard": loader.world.rank, "shard_count": size} if size > 1 else {}
    return fb.bridges.petastorm.make_batch_reader(
        folder, ["id"], batch_size=-(-loader.global_batch // size), seed=7, **options
    )


BRIDGES = [by_torch, by_hf, by_lightning, by_petastorm]


@pytest.mark.parametrize("bridge", BRIDGES)
def test_every_bridge_refuses_unequal_parts(
    bridge: Callable[[fb.Loader, fb.Data], Any], data: fb.Data, open_loader: Callable[..., fb.Loader]
) -> None:
    with open_loader(0, 3) as loader, pytest.raises(InvalidOption, match=r"lanes=18"):
        bridge(loader, data)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_every_bridge_refuses_a_state_of_another_plan(
    bridge: Callable[[fb.Loader, fb.Data], Any], data: fb.Data, open_loader: Callable[..., fb.Loader]
) -> None:
    other = fb.build_plan(data.plan.manifests[0], seed=8)
    with open_loader() as loader, fb.Loader(other, data.transform, global_batch=32, last="drop") as second:
        next(iter(second))
        reader, state = bridge(loader, data), second.state_dict()
        with pytest.raises(CursorMismatch, match="plan"):
            reader.load_state_dict(state)
        if bridge is by_petastorm:
            reader.stop()
