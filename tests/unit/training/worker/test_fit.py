"""`fb.fit`, the reference training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forebay.data.loader.data import Data
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import BadJob, InvalidOption
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.fit import fit
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker


class HalfFrozen(nn.Module):
    """Its dropout drops nothing: that part is in eval mode, as a pretrained part often is."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Sequential(nn.Dropout(0.5)), nn.Linear(3, 1)
        self.base.eval()

    def forward(self, batch: Any) -> Tensor:
        return self.head(self.base(batch["x"]))[:, 0]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), InvalidOption, r"optimizer=SGD\(\.\.\.\) is built"),
        (lambda model: partial(torch.optim.SGD, lr=0.1), BadJob, r"reads batch\['label'\], .* have 'x', 'y'\. Name"),
    ],
)
def test_what_fit_needs_is_named(
    make_data: Callable[..., Data],
    make_recorder: type,
    tmp_path: Path,
    make: Callable[[nn.Module], Any],
    error: type[Exception],
    says: str,
) -> None:
    def train(worker: Worker) -> None:
        model = nn.Linear(3, 1)
        fit(worker, model, make(model), nn.MSELoss())

    data = make_data()
    unnamed = replace(data, transform=Transform(x=Dense(["x1", "x2", "x3"]), y=Label("clicked")))
    worker = Worker(TrainSpec(data=unnamed), SingleProcessCollective(), None, DirectoryStore(tmp_path), make_recorder())
    with pytest.raises(error, match=says):
        worker.run(train)


def test_evaluations_do_not_change_what_is_trained(
    make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    """Nor the layers that train in eval mode: a resumed run would have them so again, and end with another model."""
    data, modes, ends = make_data(), list[tuple[bool, ...]](), list[Tensor]()

    def evaluate(_worker: Worker, model: nn.Module) -> dict[str, float]:
        modes.append(tuple(each.training for each in model.modules()))
        return {"auc": 0.5}

    for name, evaluates, epochs in (("plain", False, (2,)), ("evaluated", True, (2,)), ("resumed", True, (1, 2))):
        for number in epochs:

            def train(worker: Worker, evaluates: bool = evaluates) -> None:
                model = HalfFrozen()
                fit(worker, model, partial(torch.optim.SGD, lr=0.1), nn.MSELoss(), evaluate if evaluates else None)
                assert [each.training for each in model.modules()] == [True, False, False, True]
                ends.append(model.head.weight.detach())

            spec = TrainSpec(data=data, epochs=number, seed=5)
            store = DirectoryStore(tmp_path / name)
            Worker(spec, SingleProcessCollective(), None, store, make_recorder()).run(train)
    plain, evaluated, _, resumed = ends
    assert torch.equal(plain, evaluated) and torch.equal(plain, resumed)
    assert set(modes) == {(False,) * 4}
