"""Losses of the datasets of a mixture count every row once, over batches, lanes and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forebay.data.loader.batch import Batch
from forebay.data.loader.data import Data
from forebay.data.plan.mixture.mixture import Mixture
from forebay.errors import InvalidOption
from forebay.events import EpochEnded, Reported
from forebay.training.checkpoint.local_store import DirectoryStore
from forebay.training.collectives.collective import Collective
from forebay.training.monitors.source_losses import losses_by_source
from forebay.training.state.metric import scalar, weighted
from forebay.training.worker.fit import fit
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker


class MixtureModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(batch["x"]).squeeze(1)


@pytest.fixture
def mixed(make_data: Callable[..., Data]) -> Data:
    data = make_data(rows=(13, 1, 20, 9), folder="web")
    other = make_data(rows=(5, 3, 4, 1), folder="code")
    return replace(data, plan=Mixture({"web": data.plan, "code": other.plan}, {"web": 0.8, "code": 0.2}))


def batch_of(source: Sequence[int], **options: Any) -> Batch:
    batch = Batch({"x": torch.zeros(len(source))}, **options)
    batch.source, batch.names = torch.tensor(source, dtype=torch.int16), ("code", "web", "books")
    return batch


def test_each_data_set_has_the_mean_of_its_rows() -> None:
    losses = torch.tensor([1.0, 2.0, 6.0, 5.0], requires_grad=True)
    metrics = losses_by_source(batch_of([1, 0, 1, 0]), losses)
    assert {name: float(scalar(name, value)) for name, value in metrics.items()} == {
        "loss/code": 3.5,
        "loss/web": 3.5,
        "loss/books": 0.0,
    }
    assert [float(weighted("", value)[1]) for value in metrics.values()] == [2, 2, 0]
    wide = losses_by_source(batch_of([1, 0]), torch.tensor([[1.0, 3.0], [5.0, 5.0]]), name="nll")
    assert float(scalar("", wide["nll/web"])) == 2.0


def test_a_dummy_row_does_not_count_even_if_it_is_nan() -> None:
    metrics = losses_by_source(batch_of([1], weight=0.0), torch.tensor([float("nan")]))
    assert [weighted("", value) for value in metrics.values()] == [(0, 0)] * 3


def test_losses_that_are_no_rows_are_refused() -> None:
    for losses in (torch.tensor(1.0), torch.zeros(3)):
        with pytest.raises(InvalidOption, match=r"for 2 rows\. Give one loss for each row"):
            losses_by_source(batch_of([1, 0]), losses)
    assert losses_by_source(Batch({"x": torch.zeros(2)}), torch.zeros(2)) == {}


def trained(
    collective: Collective, data: Data, folder: str, reduction: str, recorder: Any
) -> tuple[list[torch.Tensor], list[Any]]:
    """Parameters and events after two epochs with a learning rate of 0 in the first step's direction."""
    spec = TrainSpec(data=data, epochs=2, seed=5, reduction=reduction)  # type: ignore[arg-type]
    found: list[torch.Tensor] = []

    def train(worker: Worker) -> None:
        model = fit(worker, MixtureModel(), partial(torch.optim.SGD, lr=0.05), nn.BCEWithLogitsLoss())
        found.extend(value.detach().clone() for value in model.state_dict().values())

    reporter = recorder()
    Worker(spec, collective, None, DirectoryStore(Path(folder)), reporter).run(train)
    return found, reporter.events


@pytest.mark.parametrize("reduction", ["mean", "exact"])
def test_every_world_reports_the_same_losses(
    ranks: Callable[..., list[Any]], mixed: Data, tmp_path: Path, make_recorder: type, reduction: str
) -> None:
    worlds = [ranks(size, trained, mixed, str(tmp_path / str(size)), reduction, make_recorder) for size in (1, 2, 3)]
    first = worlds[0][0]
    for world in worlds:
        epochs = [event for event in world[0][1] if isinstance(event, EpochEnded)]
        assert [set(epoch.metrics) for epoch in epochs] == [{"loss", "loss/code", "loss/web"}] * 2
        expected = [event for event in first[1] if isinstance(event, EpochEnded)]
        for epoch, wanted in zip(epochs, expected, strict=True):
            assert epoch.metrics == pytest.approx(wanted.metrics, rel=1e-4)
        if reduction == "exact":
            for parameters, _ in world:
                assert all(torch.equal(one, other) for one, other in zip(parameters, first[0], strict=True))
    assert {"loss/code", "loss/web"} <= {
        name for event in first[1] if isinstance(event, Reported) for name in event.metrics
    }


def test_the_epoch_has_the_mean_over_all_rows(mixed: Data, tmp_path: Path, make_recorder: type) -> None:
    from forebay.training.collectives.collective import SingleProcessCollective

    losses: dict[str, list[float]] = defaultdict(list)

    def train(worker: Worker) -> None:
        model, _ = worker.setup(MixtureModel(), partial(torch.optim.SGD, lr=0.0))
        for batch in worker.loader():
            rows = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"], reduction="none")
            for source, loss in zip(batch.source.tolist(), rows.tolist(), strict=True):
                losses[f"loss/{batch.names[source]}"].append(loss)
            worker.commit(loss=rows.mean(), **losses_by_source(batch, rows))

    reporter = make_recorder()
    Worker(TrainSpec(data=mixed), SingleProcessCollective(), None, DirectoryStore(tmp_path), reporter).run(train)
    (epoch,) = reporter.of(EpochEnded)
    for name, values in losses.items():
        assert epoch.metrics[name] == pytest.approx(np.mean(values), rel=1e-6)
