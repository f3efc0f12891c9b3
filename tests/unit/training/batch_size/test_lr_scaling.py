from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR

from forebay.errors import InvalidOption
from forebay.training.batch_size.lr_scaling import LinearScaling, LRScaling, SqrtScaling
from forebay.training.batch_size.policy import RateScaling

SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    lambda optimizer: CosineAnnealingLR(optimizer, T_max=7),
    lambda optimizer: ExponentialLR(optimizer, gamma=0.8),
]


def factors(rate: RateScaling, now: int, before: int, base: int = 100) -> list[float]:
    return [
        rate.factor(global_batch=now, base_batch=base, steps_since_change=step, previous_batch=before)
        for step in range(6)
    ]


def test_factors() -> None:
    assert factors(LinearScaling(), 100, 100) == [1.0] * 6
    assert factors(LinearScaling(), 300, 100) == [3.0] * 6
    assert factors(LinearScaling(warmup_steps=4), 300, 100) == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]
    assert factors(LinearScaling(warmup_steps=4), 100, 400) == [1.0] * 6, "a rate too high is left at once"
    assert factors(SqrtScaling(), 50, 100) == [math.sqrt(0.5)] * 6
    assert factors(SqrtScaling(warmup_steps=2), 400, 100) == [1.0, 1.5, 2.0, 2.0, 2.0, 2.0]
    for kind in (LinearScaling, SqrtScaling):
        with pytest.raises(InvalidOption, match="warmup_steps"):
            kind(warmup_steps=-1)


def groups(rates: tuple[Any, ...] = (0.1, 0.03), kind: Any = torch.optim.SGD) -> tuple[list[nn.Parameter], Any]:
    parameters = [nn.Parameter(torch.zeros(2)) for _ in rates]
    optimizer = kind([{"params": [each], "lr": rate} for each, rate in zip(parameters, rates, strict=True)])
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    return parameters, optimizer


def rates_of(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.state_dict()["param_groups"]]


@pytest.mark.parametrize("make", SCHEDULERS)
@pytest.mark.parametrize("first", ["scheduler", "rate"])
def test_schedulers_do_not_see_it(make: Callable[[Any], Any], first: str) -> None:
    plain_parameters, plain = groups()
    plain_scheduler = make(plain)
    parameters, optimizer = groups()
    scheduler = make(optimizer) if first == "scheduler" else None
    scaled = LRScaling(optimizer, LinearScaling(warmup_steps=3), base_batch=8)
    scheduler = scheduler or make(optimizer)
    for step in range(6):
        scaled.set_batch(global_batch=16, previous_batch=8, steps_since_change=step)
        factor = [1, 4 / 3, 5 / 3, 2, 2, 2][step]
        before = [each.detach().clone() for each in parameters]
        rates = rates_of(optimizer)
        optimizer.step()
        scheduler.step()
        plain.step()
        plain_scheduler.step()
        assert rates_of(optimizer) == rates_of(plain), "to the last bit"
        assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
        for was, now, rate in zip(before, parameters, rates, strict=True):
            torch.testing.assert_close(was - now, torch.full((2,), rate * factor))
    assert not torch.equal(parameters[0], plain_parameters[0])


def test_a_factor_of_one_changes_no_bit() -> None:
    plain_parameters, plain = groups(kind=torch.optim.Adam)
    parameters, optimizer = groups(kind=torch.optim.Adam)
    LRScaling(optimizer, SqrtScaling(), base_batch=8).set_batch(global_batch=8, previous_batch=8, steps_since_change=0)
    for _ in range(3):
        plain.step()
        optimizer.step()
    assert all(map(torch.equal, parameters, plain_parameters))


class Unwilling(torch.optim.SGD):
    willing = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if not self.willing:
            raise RuntimeError("no")
        return super().step(closure)


@pytest.mark.parametrize("then", ["step", "state", "load", "at"])
def test_a_step_that_raises(then: str) -> None:
    parameters, optimizer = groups(kind=Unwilling)
    scaled = LRScaling(optimizer, LinearScaling(), base_batch=8)
    scaled.set_batch(global_batch=16, previous_batch=16, steps_since_change=0)
    saved = optimizer.state_dict()
    optimizer.willing = False
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            optimizer.step()
    optimizer.willing = True
    if then == "state":
        assert rates_of(optimizer) == [0.1, 0.03]
    if then == "load":
        saved["param_groups"][0]["lr"] = 0.5
        optimizer.load_state_dict(saved)
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.03]
    if then == "at":
        scaled.set_batch(global_batch=16, previous_batch=16, steps_since_change=1)
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.03]
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5 if then == "load" else 0.1, 0.03]
    torch.testing.assert_close(parameters[0].detach(), torch.full((2,), -1.0 if then == "load" else -0.2))


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.1)
    (parameter,), optimizer = groups((rate,))
    assert optimizer.param_groups[0]["lr"] is rate
    scaled = LRScaling(optimizer, LinearScaling(), base_batch=1)
    scaled.set_batch(global_batch=3, previous_batch=3, steps_since_change=0)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == torch.tensor(0.1).item()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), -0.3))


def test_an_optimizer_without_rates() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    del optimizer.param_groups[0]["lr"]
    with pytest.raises(InvalidOption, match="parameter group without"):
        LRScaling(optimizer, LinearScaling(), base_batch=8)
