"""Plan of a job's tables, before it trains.

It has their use by the job's own batches, and the cost of each placement.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import nn
from torch.optim import Optimizer

from forebay.cli.tables.counted_rows import CountedRows
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.errors import BadJob
from forebay.events import EpochEnded, Evaluated, Event, Request
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.job.job import Job
from forebay.training.state.metric import Metric
from forebay.training.strategies.strategy import BuildOptimizer
from forebay.training.tables.optimizers import RowOptimizer
from forebay.training.tables.options import Tables
from forebay.training.tables.owned_rows import TableFacts
from forebay.training.tables.placement import LinkSpeed, PlacementCost, TableDemand, costs_of
from forebay.training.tables.strategy import TablesOption
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admitted_rows import AdmittedRows
from forebay.training.tables.vocabulary.count_sketch import sketch_shape
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """Use of an open vocabulary in the counted steps.

    Ids are `distinct` or `admitted`. `most_bytes` are the bytes of a full table. `shared` is the share of lookups whose
    ids have no row at the end. Evictions are not counted.
    """

    distinct: int
    admitted: int
    shared: float
    most_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """Use of one table, and the cost of each placement.

    Figures are means over the counted steps at one world size. The cheapest placement comes first.

    `lookups` are per global batch, `unique` the rows that one rank fetches. `hottest` is the share of the most
    frequent id. `table_bytes` has the rows and the state of their optimizer. `bad` are ids beyond the table, a step.
    `opened` is set for an open vocabulary, whose `table_bytes` count admitted ids.
    """

    name: str
    demand: TableDemand
    lookups: float
    hottest: float
    bad: float
    table_bytes: int
    costs: Sequence[PlacementCost]
    opened: OpenPlan | None = None

    def memory_bytes(self, placement: str) -> int:
        """Return the table's bytes on the fullest rank."""
        return -(-self.table_bytes // self.demand.world_size) if placement == "rows" else self.table_bytes


class _EnoughCounted(Exception):
    pass


class _NoDriver:
    """`Reporter` of a run that nothing follows."""

    def report(self, *events: Event) -> None:
        """Do nothing."""

    def request(self) -> Request:
        return Request()

    def synced_request(self) -> Request:
        return Request()

    def knows(self, report: EpochEnded | Evaluated) -> bool:  # noqa: ARG002
        return True


class CountingWorker(Worker):
    """Worker whose tables count lookups and hold no rows.

    Its train function ends after `steps` steps, or an epoch.
    """

    def __init__(self, spec: TrainSpec, cache: DiskCache | None, folder: str, world_sizes: Sequence[int]) -> None:
        super().__init__(spec, SingleProcessCollective(), cache, DirectoryStore(folder), _NoDriver())
        self._world_sizes = world_sizes
        self.counted_tables: dict[str, CountedRows] = {}
        self.options: Tables | None = None
        self.steps = 0
        self.most_steps = 1

    def setup(
        self, model: nn.Module, optimizer: BuildOptimizer, *, strategy: str | None = None, tables: TablesOption = None
    ) -> tuple[nn.Module, Optimizer]:
        if isinstance(tables, Tables):
            tables = replace(tables, start=None)  # Rows of an earlier run would take memory.
        model, built = super().setup(model, optimizer, strategy=strategy, tables=tables)
        if tables is None:
            raise BadJob("the job's model has no fb.Table, so there is nothing to plan.")
        self.options = Tables(tables) if isinstance(tables, RowOptimizer) else tables
        for name, module in model.named_modules():
            if isinstance(module, Table):
                facts = TableFacts(name=name, rows=module.rows, dim=module.dim, scale=module.scale)
                self.counted_tables[name] = CountedRows(
                    facts, self.options.optimizer, self._world_sizes, module.admission
                )
                module.shared = self.counted_tables[name]
        return model, built

    def commit(self, **metrics: Metric) -> None:  # noqa: ARG002 - of a model without tables
        self.steps += 1
        if self.steps >= self.most_steps:
            raise _EnoughCounted
        self._progress.pop_pending(self.steps)
        if self.epoch:
            raise _EnoughCounted


def plan_tables_of(job: Job, *, world_sizes: Sequence[int], steps: int) -> dict[int, list[TablePlan]]:
    """Count a job's lookups over some steps, by world size.

    It trains in this process, with tables of zeros. Returns the plans for each world size.

    Raises `BadJob` for a model without tables, and as the train function does.
    """
    cache = None if job.cache is None else job.cache.open()
    with tempfile.TemporaryDirectory() as folder:
        worker = CountingWorker(job.train_spec, cache, folder, world_sizes)
        worker.most_steps = steps
        with suppress(_EnoughCounted):
            worker.run(job.train)
    return {size: _plans(worker, size) for size in world_sizes}


def _plans(worker: CountingWorker, size: int) -> list[TablePlan]:
    assert worker.options is not None, "setup() was called"
    counted, steps = list(worker.counted_tables.values()), max(worker.steps, 1)
    demands = [
        TableDemand(
            rows=each.facts.rows,
            dim=each.facts.dim,
            unique=each.unique[size] / steps,
            world_size=size,
            wire=worker.options.wire,
            is_open=each.admission is not None,
            calls=each.use.calls / steps,
            own_calls=each.use.own_calls / steps,
        )
        for each in counted
    ]
    costs = costs_of(demands, LinkSpeed.of(worker.options.link_mbit))
    return [_plan(*each, worker) for each in zip(counted, demands, costs, strict=True)]


def _plan(
    counted: CountedRows, demand: TableDemand, costs: Sequence[PlacementCost], worker: CountingWorker
) -> TablePlan:
    assert worker.options is not None, "setup() was called"
    facts, steps = counted.facts, max(worker.steps, 1)
    return TablePlan(
        name=facts.name,
        demand=demand,
        lookups=counted.use.lookups / steps,
        hottest=counted.hottest / max(counted.use.lookups, 1),
        bad=counted.use.bad / steps,
        table_bytes=_bytes_of(counted, worker.options.optimizer, counted.admitted),
        costs=costs,
        opened=_opened(counted, worker.options.optimizer),
    )


def _opened(counted: CountedRows, optimizer: RowOptimizer) -> OpenPlan | None:
    if counted.admission is None:
        return None
    return OpenPlan(
        distinct=counted.distinct,
        admitted=counted.admitted,
        shared=counted.shared / max(counted.use.lookups, 1),
        most_bytes=_bytes_of(counted, optimizer, counted.facts.rows),
    )


def _bytes_of(counted: CountedRows, optimizer: RowOptimizer, rows: int) -> int:
    """Return the bytes of `rows` rows over all ranks.

    Rows and their state, and index and sketch of an open vocabulary.
    """
    facts = counted.facts
    if counted.admission is None:
        return rows * facts.row_bytes(optimizer)
    sketch = 0 if counted.admission.is_immediate else math.prod(sketch_shape(facts.rows))
    return AdmittedRows.bytes_of(facts, optimizer, rows) + sketch
