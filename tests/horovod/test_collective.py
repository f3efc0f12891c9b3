"""Collectives of ranks in processes of their own, over Horovod. Each world size is started once, for all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.horovod.conftest import run_ranks
from tests.tables.many_tables import ManyRun, assert_bit_equal, reduce_apart, train_many
from tests.unit.conftest import memory_manifest as memory_manifest
from torch import nn

from forebay.data.manifest.manifest import Manifest
from forebay.data.plan.plan import build_plan
from forebay.training.collectives.collective import Collective
from forebay.training.driver.horovod.collective import HorovodCollective
from forebay.training.driver.horovod.gradients import HorovodDataParallel
from forebay.training.strategies.strategy import StrategyOptions

SIZES = (*(pytest.param(size, marks=pytest.mark.variation) for size in (1, 2)), 3)


def build_model() -> nn.Module:
    return nn.ModuleDict(
        {"used": nn.Linear(40, 30), "norm": nn.BatchNorm1d(30), "sometimes": nn.Linear(30, 1), "never": nn.Linear(2, 2)}
    )


class OddTypes(nn.Module):
    """Has tensors of types that Horovod does not know."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1.0 + rank, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([rank == 0, False, True]))
        self.register_buffer("angle", torch.full((), 1.0 + rank, dtype=torch.complex64))

    def forward(self, weight: float) -> torch.Tensor:
        return (self.weight * self.mask).sum() * weight


def backward(model: nn.ModuleDict, rank: int, *, inputs: torch.Tensor, uses_last: bool) -> None:
    hidden = model["norm"](model["used"](inputs))
    (model["sometimes"](hidden) if uses_last else hidden).mean().mul(rank + 1).backward()


def gradients(model: nn.Module) -> list[np.ndarray | None]:
    return [None if p.grad is None else p.grad.double().numpy().copy() for p in model.parameters()]


def wrapped(collective: Collective, options: StrategyOptions) -> nn.Module:
    torch.manual_seed(collective.world.rank)
    return HorovodDataParallel(collective, options).wrap(build_model())


def laws(collective: Collective, options: StrategyOptions) -> dict[str, Any]:
    rank, size = collective.world.rank, collective.world.size
    counts = np.array([[rank, 1], [2**60, rank]], dtype=np.int64)
    answer: dict[str, Any] = {
        "sum": collective.all_reduce(counts),
        "float": collective.all_reduce(np.array([0.1 * rank])),
        "gather": collective.combine({"rank": rank, "blob": "x" * 1000 * rank}, list),
        "share": collective.broadcast_object(("from", rank) if rank == 0 else None),
        "nothing": collective.broadcast_object(None),
        "unchanged": counts[0].tolist() == [rank, 1],
    }
    inputs = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank))
    model = wrapped(collective, options)
    answer["parameters"] = [p.detach().numpy().copy() for p in model.parameters()]
    passes = []
    for _ in range(2):
        backward(model, rank, inputs=inputs, uses_last=rank == size - 1)
        passes.append(gradients(model))
        model.zero_grad()
    answer["passes"] = passes
    alone = build_model()
    alone.load_state_dict(model.state_dict())
    backward(alone, rank, inputs=inputs, uses_last=rank == size - 1)
    answer["alone"] = gradients(alone)
    adaptive = wrapped(collective, replace(options, reduction="adasum"))
    backward(adaptive, 0, inputs=torch.ones(8, 40) + torch.arange(8.0)[:, None], uses_last=True)
    answer["adasum of equals"] = gradients(adaptive)
    if size > 1:
        means: list[float] = []
        model.register_forward_pre_hook(lambda module, _: means.append(float(module["norm"].running_mean[0])))
        for trains, counts_gradients in ((False, True), (True, False), (True, True)):
            model["norm"].running_mean.fill_(rank)
            model.train(trains)
            with torch.set_grad_enabled(counts_gradients), pytest.raises(NotImplementedError):
                model(inputs)
        answer["means"] = means
    odd = HorovodDataParallel(collective, options).wrap(OddTypes(rank))
    odd(1.0 + rank).backward()
    answer["odd types"] = {name: value.tolist() for name, value in odd.state_dict().items()}
    answer["odd types"]["gradient"] = odd.weight.grad.tolist()
    if size > 1:
        tensors, mask = collective.tensor_collectives(), torch.tensor(rank == 0)
        tensors.broadcast(mask)
        own = torch.arange(2.0 * size).to(torch.bfloat16).view(1, -1) + rank
        dealt = tensors.all_to_all(own)[:, 0, 0].tolist()
        answer["odd messages"] = bool(mask), tensors.all_gather(own[0, :1]).tolist(), dealt
    many = ManyRun(tables=5, wire="float16")
    apart = replace(many, looks_up_together=False, reduce=reduce_apart)
    answer["tables"] = train_many(collective, many), train_many(collective, apart)
    return answer


@pytest.fixture(scope="module", params=SIZES)
def answers(request: pytest.FixtureRequest, memory_manifest: Callable[..., Manifest]) -> list[dict[str, Any]]:
    options = StrategyOptions(reduction="mean", plan=build_plan(memory_manifest([8, 8]), lanes=4), seed=0)
    return run_ranks(request.param, laws, options)


def test_values_are_exchanged(answers: list[dict[str, Any]]) -> None:
    size = len(answers)
    total = sum(range(size))
    for answer in answers:
        assert answer["sum"].dtype == np.int64
        assert answer["sum"].tolist() == [[total, size], [size * 2**60, total]]
        assert answer["float"][0] == pytest.approx(0.1 * total)
        assert [len(each["blob"]) for each in answer["gather"]] == [1000 * rank for rank in range(size)]
        assert (answer["share"], answer["nothing"], answer["unchanged"]) == (("from", 0), None, True)


def test_types_that_horovod_does_not_know_travel_as_bytes(answers: list[dict[str, Any]]) -> None:
    mean = sum(1.0 + rank for rank in range(len(answers))) / len(answers)
    for answer in answers:
        kept = {"weight": [1.0] * 3, "mask": [True, False, True], "angle": 1 + 0j}
        assert answer["odd types"] == {**kept, "gradient": [mean, 0.0, mean]}
    every = [float(rank) for rank in range(len(answers))]
    for rank, answer in enumerate(answers if len(answers) > 1 else ()):
        assert answer["odd messages"] == (True, every, [2 * rank + each for each in every])


def test_messages_of_tables_together_are_those_apart(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        together, apart = answer["tables"]
        assert_bit_equal(together, apart)
        assert together.forward == [2 * (len(answers) > 1)] * 4
        assert together.update == [len(answers) > 1] * 4


def test_all_begin_with_rank_0s_parameters(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        for ours, theirs in zip(answer["parameters"], answers[0]["parameters"], strict=True):
            assert np.array_equal(ours, theirs)


def test_gradients_are_the_mean_and_equal_to_the_bit(answers: list[dict[str, Any]]) -> None:
    for number, found in enumerate(answers[0]["passes"][0]):
        parts = [answer["alone"][number] for answer in answers]
        if all(part is None for part in parts):
            assert found is None, "nobody has used it"
            continue
        mean = sum(np.zeros_like(found) if part is None else part for part in parts) / len(answers)
        np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-7)
        for answer in answers:
            for each in answer["passes"]:
                assert np.array_equal(each[number], found)


def test_adasum_of_equal_gradients_is_that_gradient(answers: list[dict[str, Any]]) -> None:
    (alone,) = run_alone()
    for answer in answers:
        for ours, theirs in zip(answer["adasum of equals"], alone, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_statistics_are_rank_0s_where_it_trains_and_each_ranks_own_where_it_evaluates(
    answers: list[dict[str, Any]],
) -> None:
    assert [answer["means"] for answer in answers if "means" in answer] == [
        [rank, rank, 0.0] for rank in range(len(answers)) if len(answers) > 1
    ]


def test_collective_checks_its_world() -> None:
    def claim(collective: Collective) -> str:
        from forebay.world import World

        try:
            HorovodCollective(World(rank=0, size=3))
        except AssertionError as error:
            return str(error)
        return collective.device.type

    assert run_ranks(2, claim) == ["World of another Horovod"] * 2


def run_alone() -> list[list[np.ndarray | None]]:
    torch.manual_seed(0)
    model = build_model()
    backward(model, 0, inputs=torch.ones(8, 40) + torch.arange(8.0)[:, None], uses_last=True)
    return [gradients(model)]
