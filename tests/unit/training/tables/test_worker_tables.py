"""Tables of a run: trained, saved in parts and restored through the worker, in any world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from forebay.data.loader.data import Data
from forebay.errors import BadJob, InvalidOption
from forebay.testing.drivers.sharded_suite import damage_part
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import part_file
from forebay.training.checkpoint.parts.stored_state import open_state
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.optimizers import LazyAdam, RowSGD, RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Ranks = Callable[..., list[Any]]
OPTIMIZER = RowWiseAdagrad(lr=0.1, weight_decay=0.01)


class Ranker(nn.Module):
    def __init__(self, rows: int = 43) -> None:
        super().__init__()
        self.id = Table(rows, 4, scale=0.5)
        self.open = Table(640, 4, scale=0.5, admission=Admission(min_count=2, evict_after=64))
        self.out = nn.Linear(11, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.out(torch.cat([batch["x"], self.id(batch["id"]), self.open(-batch["id"])], dim=1))[:, 0]


def run_to(
    collective: Collective, data: Data, folder: str, stop: int, recorder: Any, strategy: str = "ddp", tables: Any = None
) -> dict[str, Any]:
    """Train up to step `stop`. Returns the losses of this process, and all tensors of the newest checkpoint."""
    spec = TrainSpec(data=data, epochs=4, checkpoint_every=2, strategy=strategy, seed=3)
    losses: list[float] = []

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(Ranker(), partial(Adam, lr=0.01), tables=tables or OPTIMIZER)
        for batch in worker.loader():
            loss = worker.backward(batch, lambda part: (model(part) - part["label"]).square().mean())
            worker.clip_grad_norm(0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
            worker.commit(loss=loss)
            if worker.step == stop:
                worker.stopped = "enough"

    worker = Worker(spec, collective, None, DirectoryStore(folder), recorder())
    worker.run(train)
    return {"losses": losses, "step": worker.step}


def saved_tensors(folder: str | Path) -> dict[str, torch.Tensor]:
    files = CheckpointFiles(CheckpointConfig(uri=str(folder)))
    with open_state(files, files.complete_steps()[0]) as state:
        tables = state.head["objects"]["tables"]["rows"]
        return {f"{name}.{key}": state.tensor(leaf) for name, table in tables.items() for key, leaf in table.items()}


def test_run_in_many_worlds_is_that_of_one_process(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path
) -> None:
    data, folder = make_data(lanes=4), str(tmp_path / "many")
    for size, stop in ((2, 4), (3, 8), (1, 10), (2, 14)):
        found = ranks(size, run_to, data, folder, stop, make_recorder)
        assert found[0]["step"] == stop
    alone = run_to(SingleProcessCollective(), data, str(tmp_path / "alone"), 14, make_recorder)
    assert alone["step"] == 14
    wanted = saved_tensors(tmp_path / "alone")
    assert len(wanted["open.ids"]) > 5
    for name, values in saved_tensors(folder).items():
        torch.testing.assert_close(values, wanted[name], rtol=1e-5, atol=1e-5)


def test_damaged_part_is_never_restored_and_the_run_repeats_every_bit(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path
) -> None:
    data, folder = make_data(lanes=4), tmp_path / "damaged"
    whole = ranks(2, run_to, data, str(tmp_path / "whole"), 8, make_recorder)
    ranks(2, run_to, data, str(folder), 6, make_recorder)
    files = CheckpointFiles(CheckpointConfig(uri=str(folder)))
    damage_part(Path(files.uri_of(6), part_file(2)), is_missing=True)
    again = ranks(2, run_to, data, str(folder), 8, make_recorder)
    assert [each["losses"] for each in again] == [each["losses"][4:] for each in whole]


@pytest.mark.variation("fsdp2 for the parameters, tables beside it")
def test_sharded_parameters_and_tables_train_as_ddp(
    ranks: Ranks, make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path
) -> None:
    data = make_data(lanes=4)
    for strategy in ("ddp", "fsdp2"):
        ranks(2, run_to, data, str(tmp_path / strategy), 8, make_recorder, strategy)
    wanted = saved_tensors(tmp_path / "ddp")
    for name, values in saved_tensors(tmp_path / "fsdp2").items():
        torch.testing.assert_close(values, wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "change", "words"),
    [
        ({}, {"tables": Tables(LazyAdam(lr=0.1))}, "has no saved state"),
        ({}, {"tables": Tables(RowSGD(lr=0.1))}, "which its optimizer does not have"),
        ({"tables": Tables(RowSGD(lr=0.1))}, {}, "has no saved state"),
    ],
)
def test_checkpoint_of_other_tables_is_refused(
    make_data: Callable[..., Data],
    make_recorder: Any,
    tmp_path: Path,
    first: dict[str, Any],
    change: dict[str, Any],
    words: str,
) -> None:
    data, folder = make_data(lanes=4), str(tmp_path / "run")
    run_to(SingleProcessCollective(), data, folder, 2, make_recorder, **first)
    with pytest.raises(BadJob, match=words):
        run_to(SingleProcessCollective(), data, folder, 4, make_recorder, **change)


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
def test_tables_follow_a_scheduler(
    make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path, rate: float | torch.Tensor
) -> None:
    changes = []

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(Ranker(), partial(Adam, lr=rate), tables=OPTIMIZER)
        scheduler = LambdaLR(optimizer, lambda epoch: 0.0 if epoch else 1.0)
        worker.track(scheduler=scheduler)
        for batch in worker.loader():
            before = model.id.shared.weight().clone()
            worker.backward(batch, lambda part: (model(part) - part["label"]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            changes.append(not torch.equal(model.id.shared.weight(), before))
            worker.commit()

    spec = TrainSpec(data=make_data(lanes=4), epochs=1, checkpoint_every=100)
    Worker(spec, SingleProcessCollective(), None, DirectoryStore(str(tmp_path)), make_recorder()).run(train)
    assert changes[0] and not any(changes[1:])


def test_a_scaler_of_gradients_is_refused(make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path) -> None:
    def train(worker: Worker) -> None:
        worker.setup(Ranker(), partial(Adam, lr=0.01), tables=OPTIMIZER)
        worker.track(off=torch.amp.GradScaler("cpu", enabled=False))
        worker.track(scaler=torch.amp.GradScaler("cpu"))

    spec = TrainSpec(data=make_data(lanes=4), epochs=1, checkpoint_every=100)
    worker = Worker(spec, SingleProcessCollective(), None, DirectoryStore(str(tmp_path)), make_recorder())
    with pytest.raises(BadJob, match=r"'scaler' scales the loss.* of table id, open back"):
        worker.run(train)


@pytest.mark.parametrize("tables", [0.05, RowWiseAdagrad, torch.optim.Adagrad])
def test_what_is_no_optimizer_of_rows_is_refused(tables: Any) -> None:
    nothing: Any = None  # is asked for later
    with pytest.raises(InvalidOption, match=r"tables=.*: give fb\.tables\.RowWiseAdagrad\(lr=0\.05\)"):
        with_tables(nothing, "ddp", torch.nn.Linear(1, 1), tables, nothing, nothing)
