"""A run starts from the tables of an earlier one, and says what it could not carry on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from forebay.data.loader.data import Data
from forebay.errors import InvalidOption
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.optimizers import LazyAdam, RowOptimizer, RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission
from forebay.training.tables.warm_start.options import WarmStart
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

OPEN = Admission(min_count=3)
ADAGRAD = RowWiseAdagrad(lr=0.1, weight_decay=0.01)


class TablesByName(nn.Module):
    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: Table(scale=0.5, **each) for name, each in options.items()})
        self.out = nn.Linear(1, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return sum(table(ids).sum(1) for table in self.tables.values()) * self.out.weight[0, 0]


def rows_after(
    collective: Collective,
    data: Data,
    folder: str,
    options: Mapping[str, Mapping[str, Any]],
    steps: int,
    recorder: Any,
    start: WarmStart | None = None,
    optimizer: RowOptimizer = ADAGRAD,
) -> dict[str, Tensor]:
    """Train some steps. Return the rows of ids 0 to 42 of all tables, and the state of those that this rank holds."""
    found: dict[str, Tensor] = {}

    def train(worker: Worker) -> None:
        tables = Tables(optimizer, placement="rows", start=start)
        model, dense = worker.setup(TablesByName(options), partial(SGD, lr=0.1), tables=tables)
        for batch in worker.loader() if steps else ():
            model(batch["id"]).square().mean().backward()
            dense.step()
            dense.zero_grad()
            worker.commit()
            if worker.step == steps:
                worker.stopped = "enough"
        tables_of = getattr(model, "module", model).tables
        with torch.no_grad():
            found.update({name: table(torch.arange(43)).clone() for name, table in tables_of.items()})
        for name, table in tables_of.items():
            found[f"{name}/sum"] = (
                table.shared.owned.tensors["sum"].clone() if "sum" in table.shared.owned.tensors else None
            )

    spec = TrainSpec(data=data, epochs=4, checkpoint_every=2, seed=3)
    Worker(spec, collective, None, DirectoryStore(f"{folder}/checkpoints"), recorder()).run(train)
    return found


@pytest.fixture
def earlier(make_data: Callable[..., Data], make_recorder: Any, tmp_path: Path) -> Any:
    """Tables of a run in `monday`, and a function that starts another one from them."""
    data = make_data(lanes=4)
    options = {
        "user": {"rows": 43, "dim": 3},
        "item": {"rows": 640, "dim": 2, "admission": OPEN},
        "old": {"rows": 43, "dim": 1},
    }
    monday = rows_after(SingleProcessCollective(), data, str(tmp_path / "monday"), options, 14, make_recorder)

    def begin(options: Any, collective: Collective | None = None, **changes: Any) -> dict[str, Tensor]:
        optimizer = changes.pop("optimizer", ADAGRAD)
        start = WarmStart(run=str(tmp_path / "monday"), **changes)
        collective = collective or SingleProcessCollective()
        return rows_after(collective, data, str(tmp_path / "tuesday"), options, 0, make_recorder, start, optimizer)

    return monday, begin


def test_rows_and_their_state_go_on(earlier: Any, caplog: pytest.LogCaptureFixture) -> None:
    monday, begin = earlier
    grown = {
        "user": {"rows": 60, "dim": 3},
        "item": {"rows": 6400, "dim": 2, "admission": OPEN},
        "new": {"rows": 43, "dim": 1},
    }
    tuesday = begin(grown)
    torch.testing.assert_close(tuesday["user"], monday["user"])
    torch.testing.assert_close(tuesday["item"], monday["item"])  # Also those that share a row.
    for name in ("user", "item"):
        assert torch.equal(tuesday[f"{name}/sum"].sort()[0][-20:], monday[f"{name}/sum"].sort()[0][-20:])
    said = caplog.text
    assert "table 'tables.user' has 43 of 43 rows of 'tables.user'" in said and "step 14" in said
    assert "table 'tables.new' starts new: " in said and "has no table 'tables.new'" in said
    assert "table 'tables.old' of " in said and "is not in this model" in said


def test_tables_and_ids_may_have_other_names(earlier: Any, caplog: pytest.LogCaptureFixture) -> None:
    monday, begin = earlier
    pairs = np.array([[5, 7], [7, 40], [0, 1], [42, 500]])
    tables = {"tables.member": "tables.user", "tables.item": "tables.item"}
    options = {"member": {"rows": 43, "dim": 3}, "item": {"rows": 640, "dim": 2}, "old": {"rows": 43, "dim": 2}}
    fresh = begin(options, tables={"tables.member": "tables.none", "tables.item": "tables.none"})
    found = begin(options, tables=tables, ids={"tables.member": pairs})
    torch.testing.assert_close(found["member"][[5, 7, 0]], monday["user"][[7, 40, 1]])
    rest = [each for each in range(43) if each not in (5, 7, 0)]
    assert torch.equal(found["member"][rest], fresh["member"][rest])
    said = caplog.text
    assert "table 'tables.member' has 3 of 43 rows of 'tables.user'" in said
    assert "table 'tables.old' starts new: its rows have 2 numbers, and 1 in the earlier run" in said


def test_a_table_may_be_opened_and_closed(earlier: Any) -> None:
    monday, begin = earlier
    options = {"user": {"rows": 6400, "dim": 3, "admission": OPEN}, "item": {"rows": 43, "dim": 2}}
    found = begin(options)
    torch.testing.assert_close(found["user"], monday["user"])
    shared = (monday["item"] == monday["item"][:, None]).all(2).sum(0) > 1
    torch.testing.assert_close(found["item"][~shared], monday["item"][~shared])


def test_other_state_starts_from_zero(earlier: Any, caplog: pytest.LogCaptureFixture) -> None:
    monday, begin = earlier
    found = begin({"user": {"rows": 43, "dim": 3}}, optimizer=LazyAdam(lr=0.1))
    torch.testing.assert_close(found["user"], monday["user"])
    assert "; exp_avg, exp_avg_sq of its optimizer starts from 0" in caplog.text


def test_wrong_starts_are_refused(earlier: Any) -> None:
    begin, options = earlier[1], {"user": {"rows": 43, "dim": 3}}
    with pytest.raises(InvalidOption, match="found no such checkpoint. It has steps 12, 14"):
        begin(options, step=3)
    with pytest.raises(InvalidOption, match=r"names tables\.none, and the model has the tables tables\.user"):
        begin(options, tables={"tables.none": "tables.user"})


@pytest.mark.parametrize(
    ("pairs", "words"), [([[1, 2], [1, 3]], "has an id twice"), ([[1, 2], [3, 2]], "has an id twice"), ([1, 2], "Give")]
)
def test_wrong_pairs_of_ids_are_refused(pairs: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        WarmStart(run="runs/monday", ids={"user": np.array(pairs)})


def test_ranks_take_their_rows_and_a_resume_reads_nothing(
    importing_ranks: Callable[..., list[Any]], earlier: Any, make_data: Any, make_recorder: Any, tmp_path: Path
) -> None:
    monday, data = earlier[0], make_data(lanes=4)
    options = {"user": {"rows": 60, "dim": 3}, "item": {"rows": 640, "dim": 2, "admission": OPEN}}
    start = WarmStart(run=str(tmp_path / "monday"))
    arguments = (data, str(tmp_path / "wednesday"), options)
    for found in importing_ranks(3, rows_after, *arguments, 0, make_recorder, start):
        torch.testing.assert_close(found["user"], monday["user"])
        torch.testing.assert_close(found["item"], monday["item"])
    trained = rows_after(SingleProcessCollective(), *arguments, 2, make_recorder, start)
    resumed = rows_after(SingleProcessCollective(), *arguments, 0, make_recorder, WarmStart(run=str(tmp_path / "none")))
    assert torch.equal(resumed["user"], trained["user"])
