"""NaN and infinity are found in the step that made them, and never pass a verdict."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.state.setup import TrainSetup


class Loop:
    """A small training loop under one guard. `spoil[step]` is done to the gradients of that step."""

    def __init__(self, guard: NanGuard, model: nn.Module | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, **options)
        training = TrainSetup(model=self.model, optimizer=self.optimizer, device=torch.device("cpu"), world_size=1)
        self.live = guard.attach(training)
        self.step = 0

    def train(self, *, inputs: torch.Tensor | None = None, spoil: Any = None, **metrics: float) -> None:
        loss = self.model(torch.randn(4, 6) if inputs is None else inputs).square().mean()
        loss.backward()
        if spoil is not None:
            spoil(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.live.step(self.step, {"loss": loss, **metrics})


def overflow(model: nn.Module) -> None:
    """Make one number of a weight's gradient infinite, outside its probed row and column."""
    model[0].weight.grad[3, 4] = math.inf


def test_healthy_steps_pass() -> None:
    loop = Loop(NanGuard())
    for _ in range(5):
        loop.train(auc=math.nan)  # an AUC of clicks alone is undefined, and no reason to roll back
    assert loop.live.verdict() == Verdict()
    assert loop.live.verdict() == Verdict()
    assert loop.live.state_dict() == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_loss_names_its_step(bad: float) -> None:
    loop = Loop(NanGuard())
    for step in range(1, 6):
        loop.train(ctr_loss=bad if step == 3 else 1.0)
    verdict = loop.live.verdict()
    assert (verdict.action, verdict.step) == (Action.SKIP, 3)
    assert verdict.reason == "NanGuard: ctr_loss of step 3 not finite"


def test_held_out_rows_are_no_fault_of_a_trained_batch() -> None:
    names = {"validation_loss": math.nan, "eval_norm": math.inf}
    loop, asked = Loop(NanGuard()), Loop(NanGuard(metrics=("*loss*", "eval*")))
    loop.train(**names)
    asked.train(**names)
    assert loop.live.verdict() == Verdict()
    assert asked.live.verdict().reason == "NanGuard: eval_norm of step 1 not finite"


def test_bad_input_is_blamed_though_later_steps_are_bad_too() -> None:
    loop = Loop(NanGuard(action="stop"))
    for step in range(1, 5):
        loop.train(inputs=torch.full((4, 6), math.nan) if step == 2 else None)
    verdict = loop.live.verdict()
    assert (verdict.action, verdict.step) == (Action.STOP, 2)
    assert verdict.reason == "NanGuard: loss and gradient of step 2 not finite"


@pytest.mark.parametrize(("bias", "place"), [(True, ("0.bias", 5)), (False, ("0.weight", (slice(None), 4)))])
def test_gradient_of_a_bad_error_or_input_is_seen_in_its_step(bias: bool, place: Any) -> None:
    def spoil(model: nn.Module) -> None:
        dict(model.named_parameters())[place[0]].grad[place[1]] = math.inf

    model = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.Tanh(), nn.Linear(8, 1, bias=bias))
    loop = Loop(NanGuard(), model)
    loop.train()
    loop.train(spoil=spoil)
    verdict = loop.live.verdict()
    assert (verdict.action, verdict.step) == (Action.SKIP, 2)
    assert verdict.reason == "NanGuard: gradient of step 2 not finite"


def test_unseen_gradient_is_found_in_the_parameters_and_named_the_second_time() -> None:
    loop = Loop(NanGuard())
    healthy = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}

    def three_steps() -> None:
        for step in range(3):
            # A model whose inputs are 0 at that number, so that no loss shows it.
            inputs = torch.randn(4, 6)
            inputs[:, 4] = 0
            loop.train(inputs=inputs.clone(), spoil=overflow if step == 1 else None, loss_of_another_kind=0.0)

    loop.model[0].register_forward_pre_hook(lambda module, args: (args[0].clone(),))
    loop.model[0].forward = lambda x: nn.functional.linear(  # type: ignore[method-assign]
        x, torch.nan_to_num(loop.model[0].weight, nan=0.0, posinf=0.0, neginf=0.0), loop.model[0].bias
    )
    three_steps()
    first = loop.live.verdict()
    assert (first.action, first.step) == (Action.ROLL_BACK, None)
    assert "parameter '0.weight' not finite" in first.reason and "watched more closely" in first.reason

    loop.model.load_state_dict(healthy)
    loop.live.load_state_dict({})
    loop.step = 0
    three_steps()
    second = loop.live.verdict()
    assert (second.action, second.step) == (Action.SKIP, 2)
    assert second.reason == "NanGuard: gradient of step 2 not finite"


def test_bad_parameter_of_the_only_step_names_that_step() -> None:
    loop = Loop(NanGuard())
    loop.train()
    assert loop.live.verdict() == Verdict()
    loop.train(spoil=overflow)
    verdict = loop.live.verdict()
    assert (verdict.action, verdict.step) == (Action.SKIP, 2)


def test_what_was_seen_is_forgotten_after_going_back() -> None:
    loop = Loop(NanGuard())
    loop.train(loss_a=math.nan)
    loop.live.load_state_dict(loop.live.state_dict())
    assert loop.live.verdict() == Verdict()


def test_a_warning_is_given_once_until_all_is_well_again() -> None:
    loop = Loop(NanGuard(action="warn", metrics=("other",)))
    actions = []
    for other in (1.0, math.nan, math.nan, 1.0, math.nan):
        loop.train(other=other)
        actions.append(loop.live.verdict().action)
    assert actions == [Action.GO_ON, Action.WARN, Action.GO_ON, Action.GO_ON, Action.WARN]


def test_sparse_gradients_masks_and_numbers_near_overflow_are_no_alarm() -> None:
    class SparseModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 3, sparse=True)
            self.huge = nn.Parameter(torch.full((4,), 3e38))
            self.register_buffer("mask", torch.full((2, 2), -math.inf))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.table(torch.tensor([1, 2])).sum() + 0 * self.huge.sum().clamp(max=1)

    loop = Loop(NanGuard(), SparseModel())
    for _ in range(3):
        loop.train()
        assert loop.live.verdict() == Verdict()


def test_it_is_a_value() -> None:
    guard = NanGuard(action="roll back", metrics=["loss"])
    assert pickle.loads(pickle.dumps(guard)) == guard == NanGuard(action=Action.ROLL_BACK, metrics=("loss",))
    with pytest.raises(InvalidOption, match="action='retry' is not an action"):
        NanGuard(action="retry")  # type: ignore[arg-type]
