"""Laws of drivers for runs with tables, as tests: rows follow the world, and outlive their owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from forebay.driver.local.driver import LocalDriver
from forebay.events import Failed
from forebay.job.elastic import Elastic
from forebay.job.job import Job
from forebay.loader.batch import Batch
from forebay.runs.result import Result
from forebay.testing.drivers.bench import ROWS, STEPS_PER_EPOCH, DriverBench, newest_commit
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.events import Disturbance, StepRecord
from forebay.testing.drivers.fixed_suite import Heard
from forebay.testing.drivers.script import Cue, Script, resize
from forebay.testing.drivers.suite import STEP_S, DriverSuite, changes, kill_members, no_act
from forebay.testing.tables.clicks import by_id
from forebay.train.state.snapshot import Snapshot
from forebay.train.tables.optimizers import RowSGD
from forebay.train.tables.options import Tables
from forebay.train.tables.table import Table
from forebay.train.worker import Worker

CLOSE = 1e-5


class CountingTables(nn.Module):
    """Least squares on three inputs and a row per id. `counts` counts, in its rows, how often each id was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Table(ROWS, 1, scale=0.0)
        self.id = Table(ROWS, 4, scale=0.5)
        self.layer = nn.Linear(7, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids = batch["row"][:, 0].long()
        inputs = torch.cat([batch["inputs"], 0.3 * self.id(ids)], dim=1)
        return self.layer(inputs)[:, 0], self.counts(ids)


def train_counting_tables(worker: Worker, *, log: str, step_s: float, stop_at: int) -> None:
    """Train, and write per step and rank the ids of its rows. Ends at step `stop_at`."""
    tables = Tables(RowSGD(lr=1.0), placement={"id": "rows", "counts": "rows"})
    model, optimizer = worker.setup(CountingTables(), partial(SGD, lr=0.01, momentum=0.9), tables=tables)
    steps = StepRecord(worker, log, Disturbance(), step_s)
    for batch in worker.loader():
        predicted, counts = model(batch)
        loss = ((predicted - batch["label"]) ** 2).mean() * batch.weight
        # Gradients are averaged over ranks. The dummy row of an empty part does not count.
        (loss - counts.sum() * worker.world.size * (batch.weight > 0)).backward()
        worker.clip_grad_norm(1e6)
        optimizer.step()
        optimizer.zero_grad()
        steps.write([int(row) for row in batch["row"][:, 0]] if batch.weight else [])
        worker.commit(loss=loss)
        if worker.step == stop_at:
            worker.stopped = "enough"


class TableSuite(DriverSuite):
    """Laws of tables, beside those of `DriverSuite`."""

    @pytest.mark.variation("the placements are tested on ranks; drivers differ in their collectives and stores")
    def test_tables_follow_the_world_and_outlive_an_owner(self, bench: DriverBench) -> None:
        heard, name = Heard(), "tables"
        cues = [
            Cue(workers=2, act=resize(4)),
            Cue(workers=4, act=resize(3)),
            Cue(workers=3, act=lambda _: kill_members(bench, name, [1]), loses_workers=True),
            Cue(workers=3, act=resize(1)),
            Cue(workers=1, act=no_act),
        ]
        script = Script(cues)
        elastic = Elastic(min_workers=1, max_workers=4, start=2)
        job = table_job(bench, name, elastic=elastic, workers=1, epochs=MOST_EPOCHS, max_failures=3)
        result = self.make_driver().run(job, [heard, script])
        assert script.is_over, f"the run ended after {script.done} of {len(cues)} cues"
        assert changes(heard)[:2] == [(2, 4), (4, 3)]
        assert 1 <= result.failures == len([event for event in heard if isinstance(event, Failed)])
        assert_like_one_process(bench, result)


def table_job(bench: DriverBench, name: str, *, stop_at: int = -1, step_s: float = STEP_S, **options: object) -> Job:
    """Make a job that trains `CountingTables` and saves every step."""
    train = partial(train_counting_tables, log=str(bench.folder / "rows" / name), step_s=step_s, stop_at=stop_at)
    return bench.job(name, **({"train": train, "checkpoint_every": 1} | options))  # type: ignore[arg-type]


def assert_like_one_process(bench: DriverBench, result: Result) -> None:
    """Assert that each row was trained as often as planned, and that all tables are those of an undisturbed run."""
    step = newest_commit(result).step
    found = saved_tables(result)
    epochs = -(-step // STEPS_PER_EPOCH)
    planned = Counter(row for at, rows in bench.planned(epochs).items() if at < step for row in rows)
    counts = found["counts"].round().int()[:, 0].tolist()
    assert counts == [planned[row] for row in range(ROWS)], "a row was lost, or trained twice"
    alone = LocalDriver().run(table_job(bench, f"alone-{result.name}", step_s=0.0, stop_at=step, epochs=epochs))
    assert newest_commit(alone).step == step
    torch.testing.assert_close(found["id"], saved_tables(alone)["id"], rtol=CLOSE, atol=CLOSE)


def saved_tables(result: Result) -> Mapping[str, Tensor]:
    """Return the tables of the newest checkpoint, in the order of ids."""
    rows = Snapshot.from_checkpoint(newest_commit(result)).objects["tables"]["rows"]
    return {name: by_id(tensors, ROWS)["weight"] for name, tensors in rows.items()}
