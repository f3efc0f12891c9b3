"""Metrics of tables: what a run reports, and what they count over ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from forebay.data.loader.data import Data
from forebay.events import EpochEnded, Reported
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.state.metric import WeightedMean
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.optimizers import LazyAdam, RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Lookup, Table, look_up
from forebay.training.tables.table_metrics import estimated_collisions
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

DIM = 4


class CountedTable(nn.Module):
    def __init__(self, rows: int = 128, *, looks_up_together: bool = False) -> None:
        super().__init__()
        self.looks_up_together = looks_up_together
        self.user = Table(rows, DIM, bad_ids="row 0", scale=0.5)
        self.out = nn.Linear(DIM, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        (rows,) = look_up(Lookup(self.user, batch["id"])) if self.looks_up_together else (self.user(batch["id"]),)
        return self.out(rows)[:, 0]


class OneRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row, self.out = Table(1, DIM), nn.Linear(DIM, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.out(self.row(batch["id"]))[:, 0]


def two_steps(
    collective: Collective, ids_of_ranks: list[list[int]], placement: str = "rows", looks_up_together: bool = False
) -> dict[str, float]:
    """Metrics after two steps with the ids of this rank."""
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    model, tables = CountedTable(looks_up_together=looks_up_together), Tables(LazyAdam(lr=0.1), placement=placement)
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, tables, collective, options)
    trained, optimizer = strategy.prepare(model, partial(SGD, lr=0.1))
    wrapped = strategy.wrap(trained)
    ids = torch.tensor(ids_of_ranks[collective.world.rank])
    for _ in range(2):
        wrapped({"id": ids}).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = strategy.local_parts().metrics()
    return {name: each.total / each.weight if isinstance(each, WeightedMean) else each for name, each in found.items()}


IDS = [[0, 0, 0, 1, 64, 65], [0, 0, 3, 500, -1, 2]]


def test_a_table_of_one_untrained_row_has_metrics() -> None:
    model = OneRow()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    collective = SingleProcessCollective()
    strategy = with_tables(
        TorchDataParallel(collective, options), "ddp", model, RowWiseAdagrad(lr=0.1), collective, options
    )
    strategy.prepare(model, partial(SGD, lr=0.1))
    assert strategy.local_parts().metrics()["tables/row/trained_rows"] == 0


@pytest.mark.parametrize("looks_up_together", [False, True])
def test_metrics_count_all_ranks(ranks: Callable[..., list[Any]], looks_up_together: bool) -> None:
    one, two = ranks(2, two_steps, IDS, "rows", looks_up_together)
    assert one == two
    assert one["tables/user/unique_share"] == (4 + 3) / 12  # 500 and -1 look up row 0.
    assert one["tables/user/hottest_share"] == (3 + 2) / 12
    assert one["tables/user/bad_ids"] == 2
    # Rows 0, 1, 2, 3, 64 and 65 lie on rank 0.
    assert one["tables/user/touched_rows"] == one["tables/user/trained_rows"] == 6
    assert one["tables/user/imbalance"] == 2
    assert one["tables/user/sent_bytes"] == (3 * 4 + 2 * 3 * 4 * DIM) / 2
    assert one["tables/user/collisions"] == pytest.approx(estimated_collisions(6, 128))


def test_open_tables_report_rows_that_come_and_go() -> None:
    collective, rows = SingleProcessCollective(), iter(range(0, 100, 10))
    options = StrategyOptions(reduction="mean", plan=None, seed=0, rows_done=rows.__next__)  # type: ignore[arg-type]
    model = nn.Sequential(Table(640, DIM, admission=Admission(min_count=2, evict_after=25)))
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, LazyAdam(lr=0.1), collective, options)
    optimizer = strategy.prepare(model, lambda _: SGD([torch.zeros(1)], lr=0.1))[1]
    for ids in ([7, 8], [7, 9], [7, 9], [5, 6], [5, 6]):
        model(torch.tensor(ids)).sum().backward()
        optimizer.step()
    found = {
        name.removeprefix("tables/0/"): each.total / each.weight if isinstance(each, WeightedMean) else each
        for name, each in strategy.local_parts().metrics().items()
    }
    # 7 at the second step, 9 at the third, then 5 and 6. 7 and 9 were last seen at row 20.
    assert (found["admitted_rows"], found["evicted_rows"], found["rows"]) == (4 / 5, 0, 4)
    assert found["shared_share"] == (2 + 2 + 1 + 2 + 2) / 10


@pytest.mark.variation("replicas are counted once")
def test_replicated_rows_are_counted_once(ranks: Callable[..., list[Any]]) -> None:
    found = ranks(2, two_steps, IDS, "replicate")[0]
    assert found["tables/user/touched_rows"] == found["tables/user/trained_rows"] == 6
    assert found["tables/user/imbalance"] == 1


@pytest.mark.parametrize(("distinct", "buckets"), [(50_000, 131_072), (100_000, 131_072), (500_000, 131_072)])
def test_collisions_are_estimated_from_the_trained_rows(distinct: int, buckets: int) -> None:
    for seed in range(5):
        occupied = len(np.unique(np.random.default_rng(seed).integers(0, buckets, distinct)))
        assert estimated_collisions(occupied, buckets) == pytest.approx(distinct - occupied, rel=0.05)


def test_collisions_of_an_empty_table_are_none() -> None:
    assert estimated_collisions(0, 5) == 0


def test_run_reports_metrics_of_its_tables(make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path) -> None:
    spec = TrainSpec(data=make_data(lanes=4), epochs=2, checkpoint_every=2, seed=3)

    def train(worker: Worker) -> None:
        model, optimizer = worker.setup(CountedTable(43), partial(SGD, lr=0.1), tables=RowWiseAdagrad(lr=0.1))
        for batch in worker.loader():
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.commit()

    recorder = make_recorder()
    Worker(spec, SingleProcessCollective(), None, DirectoryStore(str(tmp_path)), recorder).run(train)
    epochs = [event.metrics for event in recorder.events if isinstance(event, EpochEnded)]
    assert [found["tables/user/unique_share"] for found in epochs] == [1.0, 1.0]
    assert epochs[1]["tables/user/touched_rows"] == pytest.approx(43 / 6)
    assert epochs[1]["tables/user/trained_rows"] == 43
    assert "tables/user/collisions" not in epochs[1], "a full table does not show them"
    steps = [event.metrics for event in recorder.events if isinstance(event, Reported)]
    assert any("tables/user/unique_share" in metrics for metrics in steps)
