"""Noise scale on linear regression of normal rows, whose gradient noise is known.

A row's gradient is (x . d - e) x with d = w - w*, so |G|^2 = |d|^2 and tr(cov) = (n + 1) |d|^2 + n s^2.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forebay.errors import BadJob, InvalidOption
from forebay.training.batch_size.gradient_samples import GradientSample
from forebay.training.batch_size.noise_scale import Estimate, LiveNoiseScale, NoiseScale
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.state.setup import TrainSetup
from forebay.training.strategies.ddp import FixedBuckets

Ranks = Callable[..., list[Any]]

FEATURES, OFF, SPREAD = 20, 0.5, 2.0
SIGNAL = FEATURES * OFF**2
TRACE = (FEATURES + 1) * SIGNAL + FEATURES * SPREAD**2


def begin(policy: NoiseScale, model: nn.Module, world_size: int = 1) -> LiveNoiseScale:
    optimizer = torch.optim.SGD(model.parameters())
    return policy.attach(
        TrainSetup(model=model, optimizer=optimizer, device=torch.device("cpu"), world_size=world_size)
    )


def rows_of_ranks(size: int, world_size: int, *, even: bool) -> list[int]:
    """Rows of each rank: as uneven as lanes can make them. The last of three ranks has none."""
    if even or world_size == 1:
        return [size // world_size] * world_size
    return {2: [size // 4, size - size // 4], 3: [size // 3, size - size // 3, 0]}[world_size]


def regress(collective: Collective, policy: NoiseScale, steps: int, even: bool, sizes: list[int]) -> dict[str, Any]:
    """Train on fixed parameters, all off by `OFF`, with a commit every 16 steps. `even` gives ranks equal parts."""
    world = collective.world
    model = nn.Linear(FEATURES, 1, bias=False)
    nn.init.constant_(model.weight, OFF)
    live = begin(policy, model, world.size)
    wrapped = FixedBuckets(model) if world.size > 1 else model
    dice = torch.Generator().manual_seed(7)
    batch, answers, exchanged = sizes[0], [], 0
    for step in range(1, steps + 1):
        size = sizes[step % len(sizes)]
        x, noise = torch.randn(size, FEATURES, generator=dice), torch.randn(size, generator=dice) * SPREAD
        parts = rows_of_ranks(size, world.size, even=even)
        mine = slice(sum(parts[: world.rank]), sum(parts[: world.rank + 1]))
        rows = parts[world.rank]
        if rows == 0:
            mine = slice(0, 1)
        loss = ((wrapped(x[mine]).squeeze(1) - noise[mine]).square().mean() / 2) * (rows * world.size / size)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        model.zero_grad()
        live.step(rows=rows, size=size)
        if step % 16 == 0:
            measured = collective.combine(live.measured(), list)
            exchanged += len(measured[0])
            batch = live.global_batch(TrainPosition(epoch=0, position=0, step=step, global_batch=batch), measured)
            answers.append(batch)
            live.load_state_dict(pickle.loads(pickle.dumps(live.state_dict())))
    return {"estimate": live.estimate, "answers": answers, "exchanged": exchanged}


@pytest.mark.parametrize(
    ("size", "even"), [(1, True), (2, True), pytest.param(2, False, marks=pytest.mark.variation), (3, False)]
)
def test_a_known_noise_scale(ranks: Ranks, size: int, even: bool) -> None:
    policy = NoiseScale(min_batch=48, max_batch=48, every=2, horizon=10_000)
    arguments = (policy, 1200, even, [48, 72])
    answers = ranks(size, regress, *arguments) if size > 1 else [regress(SingleProcessCollective(), *arguments)]
    estimate = answers[0]["estimate"]
    assert all(answer["estimate"] == estimate for answer in answers), "all ranks come to the same answer"
    assert estimate.samples == 599, "every other step, and every pair of steps"
    assert estimate.trace == pytest.approx(TRACE, rel=0.03)
    assert estimate.signal == pytest.approx(SIGNAL, rel=0.10)
    assert estimate.noise_scale == pytest.approx(TRACE / SIGNAL, rel=0.12)
    assert {answer for each in answers for answer in each["answers"]} == {48}
    assert answers[0]["exchanged"] == 4 * estimate.samples


def test_the_batch_grows_to_the_noise_scale_and_no_further() -> None:
    # 37 rows here: from 8 to 16 and to 32, where it stays, since 37 is neither 64 nor 16.
    policy = NoiseScale(min_batch=4, max_batch=1024, every=1, horizon=60)
    assert pytest.approx(37) == TRACE / SIGNAL
    answers = regress(SingleProcessCollective(), policy, 960, True, [8])["answers"]
    assert sorted(set(answers)) == [8, 16, 32]
    assert answers == sorted(answers)
    # A pair takes two steps, so a decision takes 120 steps or more.
    assert answers.index(16) >= 120 // 16 - 1 and answers.index(32) - answers.index(16) >= 120 // 16
    answers = regress(SingleProcessCollective(), policy, 336, True, [300])["answers"]
    assert answers[-1] == 75 and sorted(set(answers)) == [75, 150, 300], "half as large, twice"


def test_decisions() -> None:
    policy = NoiseScale(min_batch=16, max_batch=100)
    assert [policy.next_batch(32, scale) for scale in (16, 16.5, 32, 63, 64, 1e9, math.inf)] == [
        16,
        32,
        32,
        32,
        *[64] * 3,
    ]
    assert [policy.next_batch(64, scale) for scale in (0, 32, 40, math.inf)] == [32, 32, 64, 100]
    assert (policy.next_batch(20, 1), policy.next_batch(16, 1), policy.next_batch(100, math.inf)) == (16, 16, 100)
    assert (policy.next_batch(400, math.inf), policy.next_batch(400, 10), policy.next_batch(8, 1)) == (400, 200, 8)


@pytest.mark.parametrize(
    "options", [{"min_batch": 9}, {"min_batch": 0}, {"every": 0}, {"horizon": 0}, {"max_batch": 1.5}]
)
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        NoiseScale(**{"min_batch": 4, "max_batch": 8} | options)


def test_several_backward_in_one_step() -> None:
    model = nn.Linear(1, 1)
    live = begin(NoiseScale(min_batch=1, max_batch=8, every=1), model)
    live.step(rows=1, size=1)
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
    with pytest.raises(BadJob, match="saw 2 backward"):
        live.step(rows=1, size=1)


def one_step(live: LiveNoiseScale, loss: Tensor) -> None:
    loss.backward()
    live.step(rows=4, size=4)


def test_samples_that_say_nothing() -> None:
    model = nn.Linear(1, 1, bias=False)
    live = begin(NoiseScale(min_batch=1, max_batch=8, every=2, horizon=1), model)
    for scale in (1.0, 1.0, 1.0, math.inf):
        one_step(live, model(torch.ones(1, 1)).sum() * scale)
    measured = live.measured()
    assert len(measured) == 4 and not GradientSample(*measured).is_sound
    place = TrainPosition(epoch=0, position=0, step=4, global_batch=4)
    assert (live.global_batch(place, [measured]), live.estimate) == (4, Estimate())
    assert not GradientSample(small=1.0, parts=1, large=1.0, rows=4).is_sound
    assert live.global_batch(place, [()]) == 4
    assert Estimate(trace=1.0, signal=-0.1, samples=3).noise_scale == math.inf


def test_gradients_without_noise() -> None:
    model, unused = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    both = nn.ModuleList([model, unused])
    live = begin(NoiseScale(min_batch=1, max_batch=8, every=3, horizon=1), both)
    for step in range(1, 6):
        # Both ranks have a gradient in the first step of the pair, only one in the second.
        loss = model(torch.ones(1, 1)).sum() + (unused(torch.ones(1, 1)).sum() * 0 if step == 4 else 0)
        one_step(live, loss)
        both.zero_grad()
    (sample,) = [GradientSample(*live.measured())]
    assert (sample.trace, sample.signal, sample.parts, sample.rows) == (0.0, 1.0, 2, 8)
