from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.errors import BadJob, InvalidOption
from forebay.training.collectives.collective import Collective, Reduction, SingleProcessCollective
from forebay.training.collectives.torch_collective import process_group
from forebay.training.strategies.ddp import FixedBuckets, TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions, build_strategy
from forebay.training.strategies.torch_strategies import TORCH_STRATEGIES

Ranks = Callable[..., list[Any]]


def options_of(data: Data, reduction: Reduction = "mean") -> StrategyOptions:
    return StrategyOptions(reduction=reduction, plan=data.plan, seed=data.plan.seed)


def layout(collective: Collective, options: StrategyOptions) -> dict[str, Any]:
    torch.manual_seed(collective.world.rank)
    strategy = TorchDataParallel(collective, options)
    model, optimizer = strategy.prepare(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), partial(torch.optim.SGD, lr=1))
    wrapped = strategy.wrap(model)
    parameters = [parameter.tolist() for parameter in model.parameters()]
    rebuilt = wrapped.reducer._rebuild_buckets()
    wrapped(torch.ones(2, 4)).sum().backward()
    frozen = nn.Linear(1, 1).requires_grad_(False)
    return {
        "kind": type(wrapped).__name__,
        "parameters": parameters,
        "trained": [id(parameter) for parameter in optimizer.param_groups[0]["params"]]
        == [id(parameter) for parameter in model.parameters()],
        "rebuilt": rebuilt or wrapped.reducer._rebuild_buckets(),
        "unwrapped": TorchDataParallel(collective, options).wrap(frozen) is frozen,
        "inner": wrapped.module is model,
    }


def test_buckets_are_settled_at_construction(ranks: Ranks, make_data: Callable[..., Data]) -> None:
    """Fails when torch moves one of the private names that `FixedBuckets` depends on."""
    answers = ranks(2, layout, options_of(make_data()))
    assert answers[0] == answers[1], "rank 0's parameters on all ranks"
    assert answers[0]["kind"] == FixedBuckets.__name__
    assert not answers[0]["rebuilt"]
    assert answers[0]["trained"]
    assert answers[0]["unwrapped"]
    assert answers[0]["inner"]


def step_without(collective: Collective, options: StrategyOptions, idle: str) -> str:
    """Make a step whose loss leaves out layer `idle`. Returns the error, or the first weights of the ranks."""
    strategy = TorchDataParallel(collective, options)
    model, optimizer = strategy.prepare(nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)}), torch.optim.SGD)
    model.forward = lambda rows: sum(each(rows) for name, each in model.items() if name != idle)  # type: ignore[assignment]
    wrapped = strategy.wrap(model)
    optimizer.step()  # Without a backward pass there is nothing to check.
    wrapped(torch.full((2, 4), 1.0 + collective.world.rank)).sum().backward()
    try:
        optimizer.step()
    except BadJob as error:
        return str(error)
    return str(collective.combine(model["a"].weight.tolist(), list))


def test_step_with_gradients_of_this_rank_alone_is_refused(ranks: Ranks, make_data: Callable[..., Data]) -> None:
    one, two = ranks(2, step_without, options_of(make_data()), "none")
    assert one == two and one.startswith("[[[")
    said = ranks(2, step_without, options_of(make_data()), "b")
    assert said[0] == said[1]
    assert "2 of 4 trained parameters, such as 'b.weight', have no gradient in this step" in said[0]


def leave_with_an_operation_under_way(collective: Collective, options: StrategyOptions, folder: Path) -> int:
    """Leave a world whose other rank is late, and collect its model. Returns how many of gloo's threads are new."""
    import torch.distributed.nn  # its functions keep the first group of a process, as default arguments

    before = num_gloo_threads()
    is_first, collecting = collective.world.is_first, folder / "collecting"
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    with process_group(collective.world, folder / "meet", timeout_s=30) as next_world:
        strategy = TorchDataParallel(next_world, options)
        model, _ = strategy.prepare(nn.Linear(4, 1), partial(torch.optim.SGD, lr=1))
        wrapped = strategy.wrap(model)
        wrapped(torch.ones(2, 4)).sum().backward()
        if is_first:
            torch.distributed.all_reduce(torch.ones(8), async_op=True)
            threading.Timer(1.0, collecting.touch).start()
        else:
            for _ in range(3000):
                if not collecting.exists():
                    time.sleep(0.01)
            torch.distributed.all_reduce(torch.ones(8))
        strategy.close()
    wrapped.cycle = [wrapped]
    del wrapped, strategy, next_world
    gc.collect()
    left = num_gloo_threads()
    torch.distributed.init_process_group(
        "gloo", (folder / "meet-again").as_uri(), rank=collective.world.rank, world_size=2
    )
    torch.distributed.barrier()
    return left - before


def num_gloo_threads() -> int:
    """Those of the present group, and of groups that PyTorch keeps: default arguments, and meshes of FSDP2."""
    return sum(each.read_text() == "pt_gloo_runloop\n" for each in Path("/proc/self/task").glob("*/comm"))


def test_a_model_that_outlives_its_world_does_not_end_the_process_group(
    ranks: Ranks, make_data: Callable[..., Data], tmp_path: Path
) -> None:
    """Otherwise garbage collection does, with the interpreter's lock: the process stood still for good."""
    answers = ranks(2, leave_with_an_operation_under_way, options_of(make_data()), tmp_path)
    assert max(answers) <= 0, "threads of the first group, but none of the one that was left"


@pytest.mark.parametrize("reduction", ["mean", "adasum", "exact"])
def test_world_of_one_reduces_nothing(make_data: Callable[..., Data], reduction: Reduction) -> None:
    strategy = build_strategy("ddp", TORCH_STRATEGIES, SingleProcessCollective(), options_of(make_data(), reduction))
    model, _ = strategy.prepare(nn.Linear(1, 1), partial(torch.optim.SGD, lr=1))
    assert strategy.wrap(model) is model


def test_unknown_strategy_is_refused_with_the_known_ones(make_data: Callable[..., Data]) -> None:
    with pytest.raises(
        InvalidOption,
        match=r"strategy='zero9' was given, .* with 'ddp', 'fsdp2', 'zero1', .* only\. Set strategy='ddp'",
    ) as refusal:
        build_strategy("zero9", TORCH_STRATEGIES, SingleProcessCollective(), options_of(make_data()))
    assert refusal.value.facts == {"strategy": "zero9", "known": sorted(TORCH_STRATEGIES)}
