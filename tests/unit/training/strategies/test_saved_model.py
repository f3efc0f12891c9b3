"""Checkpoints have what was trained, each tensor once, and a run continues with the frozen weights that it had."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forebay.data.loader.data import Data
from forebay.errors import BadJob
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.state.snapshot import Snapshot
from forebay.training.strategies.saved_model import BLOCK, FrozenBase, sum_of_bits, whole_states
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker


class Adapted(nn.Module):
    """A frozen layer, a trained one, and a second name of the trained one. `teacher` is frozen, and may be changed."""

    def __init__(self, frozen: float) -> None:
        super().__init__()
        self.base = nn.Linear(3, 1).requires_grad_(False)
        nn.init.constant_(self.base.weight, frozen)
        self.adapter = nn.Linear(3, 1)
        self.tied = self.adapter
        self.teacher = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return (self.base(batch["x"]) + self.tied(batch["x"])).squeeze(1)


def trained(
    data: Data, folder: Path, recorder: Any, *, frozen: float = 1.0, epochs: int = 1, teaches: bool = False
) -> Adapted:
    built = []

    def train(worker: Worker) -> None:
        built.append(model := Adapted(frozen))
        wrapped, optimizer = worker.setup(model, partial(torch.optim.Adam, lr=0.01))
        for batch in worker.loader():
            loss = (wrapped(batch) - batch["label"]).square().mean() * batch.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if teaches:
                model.teacher.data.add_(1)
            worker.commit(loss=loss)

    spec = TrainSpec(data=data, epochs=epochs, checkpoint_every=2)
    Worker(spec, SingleProcessCollective(), None, DirectoryStore(folder), recorder()).run(train)
    return built[0]


def saved(folder: Path) -> dict[str, Any]:
    found = DirectoryStore(folder).newest()
    assert found is not None
    return Snapshot.from_checkpoint(found).objects["model"]


@pytest.fixture
def data(make_data: Callable[..., Data]) -> Data:
    return make_data()


def test_only_what_was_trained_is_saved_and_once(data: Data, tmp_path: Path, make_recorder: Any) -> None:
    trained(data, tmp_path, make_recorder)
    assert set(saved(tmp_path)) == {"adapter.weight", "adapter.bias"}
    again = trained(data, tmp_path, make_recorder, epochs=2)
    assert torch.equal(again.tied.weight, saved(tmp_path)["adapter.weight"])
    assert torch.equal(again.base.weight, torch.ones(1, 3))


def test_run_with_another_base_is_refused(data: Data, tmp_path: Path, make_recorder: Any) -> None:
    trained(data, tmp_path, make_recorder)
    with pytest.raises(BadJob, match=r"frozen_base .*1 frozen parameters, such as base\.weight, are not those"):
        trained(data, tmp_path, make_recorder, frozen=2.0, epochs=2)


def test_frozen_parameter_that_changes_is_saved(data: Data, tmp_path: Path, make_recorder: Any) -> None:
    before = trained(data, tmp_path, make_recorder, teaches=True)
    assert torch.equal(saved(tmp_path)["teacher"], before.teacher)
    again = trained(data, tmp_path, make_recorder, epochs=2)
    assert torch.equal(again.teacher, before.teacher), "the second run changed nothing in it"


def test_sum_of_bits_tells_values_orders_and_signs_apart() -> None:
    values = torch.arange(-BLOCK, BLOCK + 5, dtype=torch.float32)
    swapped = values.clone()
    swapped[[3, BLOCK + 3]] = swapped[[BLOCK + 3, 3]]
    sums = {sum_of_bits(each) for each in (values, -values, values.flip(0), swapped, values + 1, values[:-1])}
    assert len(sums) == 6
    assert sum_of_bits(values) == sum_of_bits(values.clone())
    assert {sum_of_bits(torch.empty(0)), sum_of_bits(torch.zeros(2, 2, dtype=torch.uint8))} == {0}
    assert sum_of_bits(torch.ones(3, dtype=torch.bfloat16)) != sum_of_bits(torch.zeros(3, dtype=torch.bfloat16))


class CountingModule(nn.Module):
    """A module whose state is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, state: int) -> None:
        self.seen = state


def test_modules_keep_extra_states_that_were_equal_at_the_start() -> None:
    def made() -> tuple[nn.Module, Any]:
        model = nn.Sequential(CountingModule(), CountingModule(), nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, whole_states(model, optimizer, FrozenBase(model))["model"]

    (model, state), (other, restored) = made(), made()
    model[0].seen, model[1].seen = 5, 9  # type: ignore[assignment]
    restored.load_state_dict(state.state_dict())
    assert (other[0].seen, other[1].seen) == (5, 9)


def test_sparse_moments_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(3, 2, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved = whole_states(model, optimizer, FrozenBase(model))["optimizer"]
    assert saved.state_dict()["state"] == {}
    model(torch.tensor([1])).sum().backward()
    optimizer.step()
    with pytest.raises(BadJob, match="SGD keeps 'momentum_buffer' of '0.weight' as a sparse tensor"):
        saved.state_dict()
