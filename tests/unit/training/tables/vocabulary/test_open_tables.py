"""Tables with an open vocabulary train as dictionaries of rows, in any world, also when it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.tables.open_table import OpenOracle, OpenResult, OpenRun, train_open
from torch import nn

from forebay.errors import BadJob, InvalidOption
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import LazyAdam, RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission

Ranks = Callable[..., list[Any]]
RUNS: Mapping[str, OpenRun] = {
    "counted": OpenRun(admission=Admission(min_count=3, evict_after=320)),
    "never evicted": OpenRun(admission=Admission(min_count=2)),
    "at once": OpenRun(admission=Admission(evict_after=160)),
    "too few rows": OpenRun(admission=Admission(min_count=2, evict_after=320), rows=64),
    "too few at once": OpenRun(admission=Admission(), rows=64),
}


def assert_equal(found: OpenResult, wanted: OpenResult | OpenOracle, tolerance: float = 1e-5) -> None:
    assert found.seen == wanted.seen
    assert found.rows.keys() == wanted.rows.keys()
    for each, row in wanted.rows.items():
        torch.testing.assert_close(found.rows[each], row, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.shared, wanted.shared, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "name",
    [
        "counted",
        "at once",
        "too few at once",
        pytest.param("too few rows", marks=pytest.mark.variation("full shards are tested at once")),
        pytest.param("never evicted", marks=pytest.mark.variation("others never evict in their first steps")),
    ],
)
def test_one_process_trains_as_dictionaries(name: str) -> None:
    run = RUNS[name]
    oracle = OpenOracle(run)
    losses = oracle.train()
    found = train_open(SingleProcessCollective(), run, {})
    torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(losses), rtol=1e-5, atol=1e-5)
    assert_equal(found, oracle)
    assert found.evicted == oracle.evicted
    assert (oracle.evicted > 0) == (run.admission.evict_after is not None)
    assert len(oracle.rows) > 20


@pytest.mark.parametrize(
    "name",
    ["counted", pytest.param("too few at once", marks=pytest.mark.variation("full shards are tested in one process"))],
)
def test_ranks_train_as_dictionaries(importing_ranks: Ranks, name: str) -> None:
    oracle = OpenOracle(RUNS[name])
    oracle.train()
    for size in (2, 3):
        for found in importing_ranks(size, train_open, RUNS[name], {}):
            assert_equal(found, oracle)


def test_ids_move_with_their_rows_to_other_worlds(importing_ranks: Ranks) -> None:
    run = replace(RUNS["counted"], optimizer=LazyAdam(lr=0.01, weight_decay=0.1), max_norm=0.2)
    whole = train_open(SingleProcessCollective(), run, {})
    saved: Mapping[str, Any] = {}
    for first, size in ((0, 2), (10, 3), (20, 1), (30, 2)):
        found = importing_ranks(size, train_open, replace(run, first=first, steps=10), saved)[0]
        saved = found.state
    assert_equal(found, whole)


def test_resumed_run_evicts_alike_and_repeats_every_bit(importing_ranks: Ranks) -> None:
    run = replace(RUNS["counted"], optimizer=LazyAdam(lr=0.01, weight_decay=0.1), max_norm=0.2)
    whole = importing_ranks(2, train_open, run, {})[0]
    assert whole.evicted > 0
    first = importing_ranks(2, train_open, replace(run, steps=17), {})[0]
    rest = importing_ranks(2, train_open, replace(run, first=17, steps=23), first.state)[0]
    assert first.losses + rest.losses == whole.losses
    assert first.evicted + rest.evicted == whole.evicted
    assert rest.rows.keys() == whole.rows.keys()
    assert all(torch.equal(rest.rows[each], row) for each, row in whole.rows.items())


class OneOpenTable(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.user = Table(640, 3, **({"admission": Admission(min_count=2)} | options))


def test_evaluation_neither_counts_nor_admits() -> None:
    model = OneOpenTable()
    tables = ModelTables(model, Tables(RowSGD(lr=1.0)), SingleProcessCollective(), seed=3)
    for _ in range(3):
        with torch.no_grad():
            model.user(torch.tensor([5, -(2**63), 2**63 - 1]))
        tables.step()
    assert model.user.shared is not None and model.user.shared.use.admitted == 0
    for _ in range(2):
        model.user(torch.tensor([-(2**63)])).sum().backward()
        tables.step()
    assert model.user.shared.use.admitted == 1


def test_padding_and_bags_are_as_in_other_tables() -> None:
    model = OneOpenTable(padding_id=-1, admission=Admission())
    tables = ModelTables(model, Tables(RowSGD(lr=1.0)), SingleProcessCollective(), seed=3)
    ids = torch.tensor([[4, -1], [-1, -1], [9, 4]])
    found = model.user(ids, pool="sum")
    assert not found[1].any()
    found.sum().backward()
    tables.step()
    with torch.no_grad():
        after = model.user(torch.tensor([4, 9, -1]))
    torch.testing.assert_close(after[1] + after[0], found[2].detach() - 3)
    assert not after[2].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Admission(min_count=0), "min_count=0"),
        (lambda: Admission(min_count=256), "from 1 to 255"),
        (lambda: Admission(evict_after=0), "evict_after=0"),
        (lambda: Table(63, 2, admission=Admission()), "64 rows or more"),
        (lambda: Table(640, 2, bad_ids="row 0", admission=Admission()), "bad_ids='row 0'"),
        (
            lambda: ModelTables(
                OneOpenTable(), Tables(RowSGD(lr=1.0), placement="replicate"), SingleProcessCollective(), seed=0
            ),
            "placement='replicate' was given for table 'user'",
        ),
    ],
)
def test_wrong_options_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        make()


@pytest.mark.parametrize(("before", "after"), [(None, Admission()), (Admission(), None)])
def test_a_table_is_not_opened_or_closed_by_a_resume(before: Any, after: Any) -> None:
    def tables(admission: Admission | None) -> ModelTables:
        return ModelTables(OneOpenTable(admission=admission), Tables(RowSGD(lr=1.0)), SingleProcessCollective(), seed=3)

    with pytest.raises((BadJob, ValueError), match="admission="):
        tables(after).load_state_dict(tables(before).state_dict())
