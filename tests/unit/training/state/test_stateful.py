from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

from forebay.errors import BadJob
from forebay.training.batch_size.lr_scaling import LinearScaling, LRScaling
from forebay.training.state.stateful import StatefulObjects, left_out

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "exponential": lambda optimizer: ExponentialLR(optimizer, gamma=0.8),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=40),
    "sequential": lambda optimizer: SequentialLR(
        optimizer,
        [LambdaLR(optimizer, lambda step: (1 + step) / 4), StepLR(optimizer, step_size=2, gamma=0.5)],
        milestones=[4],
    ),
    "chained": lambda optimizer: ChainedScheduler([ExponentialLR(optimizer, 0.9), StepLR(optimizer, 3, gamma=0.5)]),
}


class Trained:
    """A layer with an optimizer, and optionally a scheduler. `go` makes steps on fixed gradients."""

    def __init__(self, schedule: Callable[[Any], Any] | None = None, *, kind: Any = torch.optim.Adam, **options: Any):
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.optimizer = kind(self.layer.parameters(), **options)
        self.scheduler = None if schedule is None else schedule(self.optimizer)
        self.checkpointed = StatefulObjects()
        self.checkpointed.add(model=self.layer, optimizer=self.optimizer)
        if self.scheduler is not None:
            self.checkpointed.add(scheduler=self.scheduler)

    def go(self, steps: int) -> list[float]:
        """Make `steps` steps. Returns their learning rates."""
        rates = []
        for step in range(steps):
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            for parameter in self.layer.parameters():
                parameter.grad = torch.full_like(parameter, 0.1 * (1 + step))
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return rates

    def branch_of(self, other: Trained) -> None:
        state = {name: left_out(each) for name, each in other.checkpointed.state().items()}
        self.checkpointed.restore(state, step=7)


def test_what_a_state_says_is_put_back() -> None:
    before = Trained(lr=0.3, weight_decay=0.1)
    before.go(3)
    after = Trained(lr=0.7, weight_decay=0.2)
    after.checkpointed.restore(before.checkpointed.state(), step=3)
    assert after.optimizer.state_dict()["param_groups"] == before.optimizer.state_dict()["param_groups"]


def test_hyperparameters_that_are_left_out_stay_as_built() -> None:
    donor = Trained(lr=0.3, weight_decay=0.1, betas=(0.5, 0.6))
    donor.go(3)
    branch = Trained(lr=0.7, weight_decay=0.0, betas=(0.8, 0.9), amsgrad=True)
    groups = branch.optimizer.state_dict()["param_groups"]
    branch.branch_of(donor)
    assert branch.optimizer.state_dict()["param_groups"] == groups
    assert branch.layer.weight.equal(donor.layer.weight)
    ours, theirs = (each.optimizer.state_dict()["state"] for each in (branch, donor))
    assert ours[0]["step"] == theirs[0]["step"] == 3 and ours[0]["exp_avg"].equal(theirs[0]["exp_avg"])


def test_one_group_may_differ_from_another() -> None:
    def kind(parameters: Any, rates: tuple[float, float]) -> Any:
        return torch.optim.SGD([{"params": [each], "lr": rate} for each, rate in zip(parameters, rates, strict=True)])

    donor, branch = Trained(kind=kind, rates=(0.1, 0.2)), Trained(kind=kind, rates=(0.3, 0.4))
    branch.branch_of(donor)
    assert [group["lr"] for group in branch.optimizer.param_groups] == [0.3, 0.4]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_from_the_new_rate(name: str) -> None:
    donor = Trained(SCHEDULERS[name], lr=0.4)
    donor.go(5)
    branch = Trained(SCHEDULERS[name], lr=0.1)
    branch.branch_of(donor)
    expected = [rate / 4 for rate in donor.go(6)]
    assert branch.go(6) == pytest.approx(expected), "as if the donor had begun at a fourth of its rate"


def test_a_schedule_is_found_again_when_its_scheduler_comes_later() -> None:
    donor = Trained(SCHEDULERS["exponential"], lr=0.4)
    donor.go(5)
    branch = Trained(lr=0.1)
    state = {name: left_out(each) for name, each in donor.checkpointed.state().items()}
    branch.checkpointed.restore(state, step=5)
    branch.scheduler = ExponentialLR(branch.optimizer, gamma=0.8)
    branch.checkpointed.add(scheduler=branch.scheduler)
    branch.checkpointed.restore(state, step=5)
    assert branch.go(4) == pytest.approx([rate / 4 for rate in donor.go(4)])


def test_rates_that_are_cycled_follow_the_new_bounds() -> None:
    def cycle(most: float) -> Callable[[Any], Any]:
        return lambda optimizer: OneCycleLR(optimizer, max_lr=most, total_steps=20)

    donor, branch = Trained(cycle(0.4), lr=0.4), Trained(cycle(0.1), lr=0.1)
    donor.go(5)
    branch.branch_of(donor)
    assert branch.go(6)[1:] == pytest.approx([rate / 4 for rate in donor.go(6)[1:]])


def test_a_plateau_keeps_what_it_has_seen() -> None:
    donor = Trained(lr=0.4)
    plateau = ReduceLROnPlateau(donor.optimizer, patience=7)
    plateau.step(3.0)
    plateau.step(4.0)
    again = ReduceLROnPlateau(Trained(lr=0.1).optimizer, patience=7)
    again.load_state_dict(left_out(plateau.state_dict()))
    assert (again.best, again.num_bad_epochs) == (3.0, 1)


def test_the_batch_scales_the_rate_of_the_branch() -> None:
    donor = Trained(kind=torch.optim.SGD, lr=0.4)
    LRScaling(donor.optimizer, LinearScaling(), base_batch=10).set_batch(
        global_batch=30, previous_batch=10, steps_since_change=0
    )
    donor.go(2)
    branch = Trained(kind=torch.optim.SGD, lr=0.1)
    LRScaling(branch.optimizer, LinearScaling(), base_batch=10).set_batch(
        global_batch=30, previous_batch=10, steps_since_change=0
    )
    branch.branch_of(donor)
    before = branch.layer.bias.detach().clone()
    branch.go(1)
    torch.testing.assert_close(before - branch.layer.bias, torch.full((2,), 0.1 * 3 * 0.1))
    assert branch.optimizer.param_groups[0]["lr"] == 0.1


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    donor = Trained(SCHEDULERS["exponential"], lr=torch.tensor(0.4), capturable=False, foreach=False)
    donor.go(2)
    branch = Trained(SCHEDULERS["exponential"], lr=torch.tensor(0.1), capturable=False, foreach=False)
    branch.branch_of(donor)
    (group,) = branch.optimizer.param_groups
    assert isinstance(group["lr"], torch.Tensor) and float(group["lr"]) == pytest.approx(0.1 * 0.8**2)


def test_a_name_has_one_object() -> None:
    trained = Trained()
    trained.checkpointed.add(model=trained.layer)
    with pytest.raises(BadJob, match=r"called 'model'.* only one"):
        trained.checkpointed.add(model=nn.Linear(3, 2))
    assert [*trained.checkpointed.state()["model"]] == ["weight", "bias"]


def test_what_does_not_fit_is_refused() -> None:
    donor = Trained(lr=0.3)
    state = {name: left_out(each) for name, each in donor.checkpointed.state().items()}
    other = StatefulObjects()
    other.add(model=nn.Linear(4, 2))
    with pytest.raises(BadJob, match=r"(?s)step 7 does not fit the model .*size mismatch"):
        other.restore(state, step=7)
    two_groups = torch.optim.Adam([{"params": [each]} for each in donor.layer.parameters()])
    other = StatefulObjects()
    other.add(optimizer=two_groups)
    with pytest.raises(BadJob, match=r"does not fit the optimizer .*parameter groups"):
        other.restore(state, step=7)
    other = StatefulObjects()
    other.add(scheduler=LambdaLR(two_groups, lambda _: 1.0))
    with pytest.raises(BadJob, match="not of 'scheduler'"):
        other.restore(state, step=7)


@pytest.mark.parametrize("kinds", [("Adam", "SGD"), ("SGD", "AdamW"), ("RMSprop", "Adam"), ("Adagrad", "SGD")])
def test_an_optimizer_of_another_class_is_refused(kinds: tuple[str, str]) -> None:
    saved, built = (Trained(SCHEDULERS["cosine"], kind=getattr(torch.optim, kind), lr=0.1) for kind in kinds)
    saved.go(2)
    state = {name: copy.deepcopy(each) for name, each in saved.checkpointed.state().items()}
    with pytest.raises(BadJob, match=r"does not fit the optimizer .*of another class: with .*, and without "):
        built.checkpointed.restore(state, step=2)


def test_a_class_that_has_got_or_lost_an_option_is_loaded() -> None:
    trained = Trained(SCHEDULERS["cosine"], lr=0.1)
    trained.go(2)
    state = trained.checkpointed.state()
    for change in ({"from_later": 1}, {}):
        lost = {"amsgrad"} if not change else set[str]()
        groups = [
            {name: each for name, each in group.items() if name not in lost} | change
            for group in state["optimizer"]["param_groups"]
        ]
        optimizer = state["optimizer"] | {"param_groups": groups}
        Trained(lr=0.5).checkpointed.restore(state | {"optimizer": optimizer}, step=2)


def test_a_rate_of_swa_is_of_no_class() -> None:
    """A checkpoint may have one, and the optimizer that loads it no such scheduler yet."""
    trained, built = Trained(lr=0.1), Trained(lr=0.1)
    SWALR(trained.optimizer, swa_lr=0.05)
    state = copy.deepcopy(trained.checkpointed.state())
    del state["optimizer"]["param_groups"][0]["amsgrad"]  # of a release of torch without it
    built.checkpointed.restore(state, step=0)
    assert built.optimizer.param_groups[0]["swa_lr"] == 0.05


def test_other_states_are_left_alone() -> None:
    for state in ({"weight": torch.ones(2)}, {}, [1, 2], None):
        assert left_out(state) is state
