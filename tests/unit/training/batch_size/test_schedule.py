from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.training.batch_size.policy import TrainPosition
from forebay.training.batch_size.schedule import BatchSchedule
from forebay.training.state.setup import TrainSetup


def test_the_epoch_alone_decides() -> None:
    schedule = pickle.loads(pickle.dumps(BatchSchedule({6: 64, 2: 32})))
    model = nn.Linear(1, 1)
    training = TrainSetup(
        model=model, optimizer=torch.optim.SGD(model.parameters()), device=torch.device("cpu"), world_size=1
    )
    live = schedule.attach(training)
    for batch in (8, 100):
        answers = []
        for epoch in range(9):
            live.step(rows=3, size=8)
            place = TrainPosition(epoch=epoch, position=5, step=77, global_batch=batch)
            answers.append(live.global_batch(place, [live.measured(), ()]))
        assert answers == [batch] * 2 + [32] * 4 + [64] * 3
    live.load_state_dict(live.state_dict())
    assert BatchSchedule({6: 64, 2: 32}) == BatchSchedule({2: 32, 6: 64})


@pytest.mark.parametrize("schedule", [{}, [8], {0: 8}, {-1: 8}, {1: 0}, {1.5: 8}, {1: 2.5}])
def test_schedules_that_are_none(schedule: Any) -> None:
    with pytest.raises(InvalidOption):
        BatchSchedule(schedule)
