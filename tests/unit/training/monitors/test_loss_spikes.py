"""A loss is compared with the median of the losses before it, and with nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.training.monitors.loss_spikes import LiveLossSpikes, LossSpikes
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.state.setup import TrainSetup


def begin(spikes: LossSpikes) -> LiveLossSpikes:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return spikes.attach(TrainSetup(model=model, optimizer=optimizer, device=torch.device("cpu"), world_size=1))


def see(live: LiveLossSpikes, losses: Sequence[float], first_step: int = 1) -> Verdict:
    for step, loss in enumerate(losses, first_step):
        live.step(step, {"loss": torch.tensor(loss), "auc": 0.5})
    return live.verdict()


def test_a_spike_is_told_from_noise_and_from_a_falling_loss() -> None:
    live = begin(LossSpikes(factor=2.0, window=5))
    assert see(live, [9.0, 7.0, 5.0, 4.0, 3.0, 3.5, 2.9, 6.0]) == Verdict()
    verdict = see(live, [3.0, 7.5, 3.0, 8.0], first_step=9)
    assert (verdict.action, verdict.step) == (Action.SKIP, 10)
    assert "loss of step 10 is 7.5, more than 2 times 3, the median of the 5 steps before" in verdict.reason
    assert live.metrics() == {"loss_spikes/median_loss": 3.0}


def test_nothing_is_judged_before_the_window_is_full() -> None:
    assert see(begin(LossSpikes(window=4)), [1.0, 1.0, 50.0, 1.0]) == Verdict()
    assert see(begin(LossSpikes(window=4)), [1.0, 1.0, 1.0, 1.0, 50.0]).step == 5


def test_a_loss_below_zero() -> None:
    live = begin(LossSpikes(factor=2.0, window=3, action="warn"))
    assert see(live, [-4.0, -4.0, -4.0, -1.0]) == Verdict()
    assert see(live, [0.5], first_step=5).action is Action.WARN


def test_numbers_that_are_none_are_left_to_another_monitor() -> None:
    live = begin(LossSpikes(window=3))
    assert see(live, [1.0, 1.0, 1.0, math.nan, math.inf, 1.0]) == Verdict()


def test_a_level_that_stays_becomes_the_median() -> None:
    live = begin(LossSpikes(window=5, action="warn"))
    see(live, [1.0] * 5)
    actions = [see(live, [4.0], first_step=step).action for step in range(6, 13)]
    assert actions[:2] == [Action.WARN, Action.WARN]
    assert actions[-2:] == [Action.GO_ON, Action.GO_ON]


def test_state_goes_on_and_goes_back() -> None:
    live = begin(LossSpikes(window=3))
    see(live, [1.0, 1.0])
    state = live.state_dict()
    see(live, [90.0, 90.0, 90.0], first_step=3)
    live.step(6, {"loss": 90.0})
    live.load_state_dict(state)
    other = begin(LossSpikes(window=3))
    other.load_state_dict(state)
    for each in (live, other):
        assert see(each, [1.0, 4.0], first_step=3).step == 4


def test_options_that_cannot_work() -> None:
    with pytest.raises(InvalidOption, match=r"factor=1\.0: a spike is more than the median"):
        LossSpikes(factor=1.0)
    with pytest.raises(InvalidOption, match="window=2"):
        LossSpikes(window=2)
