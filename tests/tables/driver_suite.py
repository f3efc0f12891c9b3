"""Laws of drivers for runs with tables, as tests: rows follow the world, and outlive their owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch
from tests.tables.clicks import by_id
from torch import Tensor, nn
from torch.optim import SGD

from forebay.data.loader.batch import Batch
from forebay.events import Event, Failed, Reported
from forebay.testing.drivers.bench import ROWS, STEPS_PER_EPOCH, DriverBench, newest_commit
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.events import Disturbance, StepRecord
from forebay.testing.drivers.fixed_suite import WORKERS, Heard
from forebay.testing.drivers.process import DriverProcess
from forebay.testing.drivers.script import Cue, Script, resize
from forebay.testing.drivers.suite import STEP_S, DriverSuite, changes, kill_members, no_act
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.runs.control import Control
from forebay.training.runs.result import Result
from forebay.training.state.snapshot import Snapshot
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.worker.worker import Worker

CLOSE = 1e-5
OPEN_ID = 0x123456789ABCDEF
EVICT_AFTER = 3 * ROWS // 2


class CountingTables(nn.Module):
    """Least squares on three inputs, a row per id, and one of an open vocabulary, which admits and evicts ids.

    `counts` counts, in its rows, how often each id was trained.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = Table(ROWS, 1, scale=0.0)
        self.id = Table(ROWS, 4, scale=0.5)
        admission = Admission(min_count=2, evict_after=EVICT_AFTER)
        self.open = Table(64 * ROWS, 4, scale=0.5, admission=admission)
        self.layer = nn.Linear(11, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        ids = batch["row"][:, 0].long()
        # Ids of either sign. Every third row has an id of its own, and the others share some.
        mixed = torch.where(ids % 3 == 0, ids, -(ids % 7)) * OPEN_ID
        inputs = torch.cat([batch["inputs"], 0.3 * self.id(ids), 0.3 * self.open(mixed)], dim=1)
        return self.layer(inputs)[:, 0], self.counts(ids)


def train_counting_tables(worker: Worker, *, log: str, disturbance: Disturbance, step_s: float, stop_at: int) -> None:
    """Train, and write per step and rank the ids of its rows. Ends at step `stop_at`."""
    tables = Tables(RowSGD(lr=1.0), placement={"id": "rows", "counts": "rows"})
    model, optimizer = worker.setup(CountingTables(), partial(SGD, lr=0.01, momentum=0.9), tables=tables)
    steps = StepRecord(worker, log, disturbance, step_s)
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


class TableBench(DriverBench):
    """`DriverBench` whose jobs train `CountingTables`, and save every step."""

    def job(
        self,
        name: str,
        *,
        at_step: int = -1,
        event: str = "",
        step_s: float = 0.0,
        stop_at: int = -1,
        **options: Any,
    ) -> Job:
        """Make a job that ends at step `stop_at`. For `at_step` and `event` see `DriverBench.job`."""
        log = self.folder / "rows" / name
        train = partial(
            train_counting_tables,
            log=str(log),
            disturbance=Disturbance(at_step=at_step, event=event),
            step_s=step_s,
            stop_at=stop_at,
        )
        chosen: dict[str, Any] = {"train": train, "checkpoint_every": 1} | options
        return super().job(name, **chosen)


class TableSuite(DriverSuite):
    """Laws of tables, beside `DriverSuite`'s."""

    @pytest.mark.variation("the placements are tested on ranks; drivers differ in their collectives and stores")
    def test_tables_follow_the_world_and_outlive_an_owner(self, bench: DriverBench) -> None:
        tables, heard, name = TableBench(bench.folder), Heard(), "tables"
        cues = [
            Cue(workers=2, act=resize(4)),
            Cue(workers=4, act=resize(3)),
            Cue(workers=3, act=lambda _: kill_members(tables, name, [1]), loses_workers=True),
            Cue(workers=3, act=resize(1)),
            Cue(workers=1, act=no_act),
        ]
        script = Script(cues)
        elastic = Elastic(min_workers=1, max_workers=4, start=2)
        job = tables.job(name, elastic=elastic, workers=1, epochs=MOST_EPOCHS, max_failures=3, step_s=STEP_S)
        result = self.make_driver().run(job, [heard, script])
        assert script.is_over, f"the run ended after {script.done} of {len(cues)} cues"
        planned = changes(heard)
        assert planned[0][0] == 2
        assert (4, 3) in planned  # Workers that are warm later join in a change of their own.
        assert 1 <= result.failures == len([event for event in heard if isinstance(event, Failed)])
        assert_like_one_process(tables, result)

    @pytest.mark.variation("what a killed driver leaves in storage is tested with whole models and with parts")
    def test_tables_of_a_killed_driver_go_on(self, bench: DriverBench) -> None:
        """It is killed in the second epoch."""
        tables, name = TableBench(bench.folder), "orphaned-tables"
        options: dict[str, Any] = {"workers": WORKERS, "epochs": 3, "storage_every_s": 0.2}
        slow = {"step_s": STEP_S, "at_step": STEPS_PER_EPOCH + 4, "event": "hang"}  # It can still be killed there.
        DriverProcess(self.driver_path, tables, name, self.environment(), **options, **slow).kill_at(
            STEPS_PER_EPOCH + 3
        )
        result = self.take_over(tables, name, **options)
        assert len({each.pid for each in tables.attempts(name)}) >= 2 * WORKERS, "nothing was taken over"
        assert_like_one_process(tables, result)

    @pytest.mark.variation("the loss of a node is tested with parts of models")
    def test_tables_outlive_a_node(self, bench: DriverBench) -> None:
        """It is lost in the second epoch, with the workers and the memory that it had."""
        nodes = self.make_cluster()
        if nodes is None:
            pytest.skip("this driver has no nodes to lose")
        with closing(nodes):
            tables, name, lost = TableBench(bench.folder), "left-tables", list[str]()

            def lose(event: Event, _control: Control) -> None:
                is_late = isinstance(event, Reported) and tables.attempts(name)[-1].step >= STEPS_PER_EPOCH + 3
                if is_late and not lost:
                    lost.extend({each.node for each in tables.members(name).values()} & set(nodes.others))
                    nodes.kill(lost[0])

            result = self.run(tables, name, lose, epochs=3, max_failures=3, step_s=STEP_S)
        assert lost
        assert result.failures >= 1
        assert_like_one_process(tables, result)


def assert_like_one_process(bench: TableBench, result: Result) -> None:
    """Assert that each row was trained as often as planned, and that all tables equal an undisturbed run's."""
    step = newest_commit(result).step
    found = saved_tables(result)
    epochs = -(-step // STEPS_PER_EPOCH)
    planned = Counter(row for at, rows in bench.planned(epochs).items() if at < step for row in rows)
    counts = found["counts"].round().int()[:, 0].tolist()
    assert counts == [planned[row] for row in range(ROWS)], "a row was lost, or trained twice"
    alone = LocalDriver().run(bench.job(f"alone-{result.name}", stop_at=step, epochs=epochs))
    assert newest_commit(alone).step == step
    torch.testing.assert_close(found, saved_tables(alone), rtol=CLOSE, atol=CLOSE)


def saved_tables(result: Result) -> Mapping[str, Tensor]:
    """Return the tables of the newest checkpoint, in the order of ids. The open one has its ids beside it."""
    rows = dict(Snapshot.from_checkpoint(newest_commit(result)).objects["tables"]["rows"])
    opened = rows.pop("open")
    return {
        **{name: by_id(tensors, ROWS)["weight"] for name, tensors in rows.items()},
        **{f"open.{key}": values for key, values in opened.items()},
    }
