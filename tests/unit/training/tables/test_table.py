from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, SparseAdam

from forebay.errors import BadJob, InvalidOption
from forebay.training.batch_size.noise_scale import NoiseScale
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.monitors.embedding_norms import EmbeddingNorms
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.state.setup import TrainSetup
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import LazyAdam, RowSGD, RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.table import Table
from forebay.training.tables.vocabulary.admission import Admission

ROWS, DIM = 70, 3


class OneTable(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.user = Table(ROWS, DIM, **options)
        self.out = nn.Linear(DIM, 1)


def placed(**options: Any) -> tuple[Table, torch.Tensor]:
    """A table, and its rows in the order of ids."""
    model = OneTable(**options)
    ModelTables(model, Tables(RowSGD(lr=1.0)), SingleProcessCollective(), seed=3)
    with torch.no_grad():
        return model.user, model.user(torch.arange(ROWS))


ids = st.integers(0, ROWS - 1)
bags = st.lists(st.lists(ids, max_size=6), max_size=8)


@settings(max_examples=60, deadline=None)
@given(bags=bags, pool=st.sampled_from(["sum", "mean"]), padding=st.sampled_from([None, 0, 69]))
def test_bags_are_those_of_torch(bags: list[list[int]], pool: str, padding: int | None) -> None:
    table, _ = placed()
    weight = table(torch.arange(ROWS)).detach()
    table.padding_id = padding
    lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int64)
    flat = torch.tensor([each for bag in bags for each in bag], dtype=torch.int64)
    offsets = lengths.cumsum(0) - lengths
    wanted = nn.functional.embedding_bag(flat, weight, offsets, mode=pool, padding_idx=padding)
    padded = torch.zeros(len(bags), 6, dtype=torch.int32)
    for row, bag in enumerate(bags):
        padded[row, : len(bag)] = torch.tensor(bag)
    for found in (table(flat, lengths, pool=pool), table(padded, lengths.int(), pool=pool)):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(table(flat, offsets=offsets, pool=pool), wanted)


def test_padding_id_is_zero_and_may_lie_beyond_the_table() -> None:
    table, rows = placed(padding_id=-1)
    found = table(torch.tensor([[2, -1], [-1, 3]]))
    assert torch.equal(found.detach()[0, 0], rows[2]) and not found[:, :, :].detach()[[0, 1], [1, 0]].any()
    assert table.shared is not None and table.shared.use.last_ids is not None
    assert table.shared.use.last_ids.tolist() == [2, 3], "the hottest id of the metrics is one that has a row"
    assert table(torch.empty(0, 2, dtype=torch.int64), pool="sum").shape == (0, DIM)


def test_ids_beyond_the_table_may_be_counted() -> None:
    table, rows = placed(bad_ids="row 0")
    assert torch.equal(table(torch.tensor([70, 5, -1])).detach(), rows[[0, 5, 0]])
    assert table.shared is not None and table.shared.use.bad == 2
    table.padding_id = 0
    found = table(torch.tensor([70, 5, -1, 0])).detach()
    assert torch.equal(found[1], rows[5]) and not found[[0, 2, 3]].any(), "row 0 stands for no id"
    assert torch.equal(table(torch.tensor([[70, 5]]), pool="mean").detach()[0], rows[5])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda table: table(torch.zeros(2, 2, 2).long(), pool="sum"), "are not bags"),
        (lambda table: table(torch.zeros(4).long(), pool="sum"), "are not bags"),
        (lambda table: table(torch.zeros(4).long(), torch.tensor([1, 2]), pool="sum"), "3 ids, and 4 were given"),
        (lambda table: table(torch.zeros(4).long(), offsets=torch.tensor([1, 2]), pool="sum"), "begin with 1"),
        (lambda table: table(torch.zeros(2, 2).long(), torch.tensor([1, 3]), pool="sum"), "from 0 to 2"),
        (lambda table: table(torch.zeros(2).long(), torch.tensor([2])), "pool= was not given"),
        (lambda table: table(torch.zeros(2, 2).long(), pool="max"), "'max' is unknown"),
        (lambda table: table(torch.tensor([1.0, 16_777_217.0])), "ids of a table are float32"),
        (lambda table: table(torch.tensor([True])), "ids of a table are bool"),
        (lambda table: table(torch.zeros(3).long(), torch.tensor([1.5, 1.5]), pool="sum"), "lengths of a table are"),
        (lambda _: Table(0, 3), "at least 1"),
        (lambda _: Table(1, 3, bad_ids="ignore"), "bad_ids='ignore'"),
        (lambda _: Tables(RowSGD(lr=1.0), wire="int8"), "wire='int8'"),
        (lambda _: Tables(RowSGD(lr=1.0), placement={"user": "column"}), "'column' is unknown"),
        (lambda _: Tables(SGD), "give the optimizer of rows"),
        (lambda _: RowWiseAdagrad(lr=-1.0), "lr=-1.0"),
    ],
)
def test_wrong_calls_are_refused(call: Any, words: str) -> None:
    table, _ = placed()
    with pytest.raises(InvalidOption, match=words):
        call(table)


def test_a_table_is_called_after_setup() -> None:
    with pytest.raises(BadJob, match=r"before worker\.setup"):
        Table(3, 2)(torch.tensor([1]))


def test_options_and_tables_come_together() -> None:
    collective = SingleProcessCollective()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    inner = TorchDataParallel(collective, options)
    make = partial(with_tables, inner, "ddp")
    assert make(nn.Linear(1, 1), None, collective, options) is inner
    with pytest.raises(InvalidOption, match="the model has 1 tables: user"):
        make(OneTable(), None, collective, options)
    with pytest.raises(InvalidOption, match="0 tables"):
        make(nn.Linear(1, 1), RowSGD(lr=1.0), collective, options)
    with pytest.raises(InvalidOption, match="strategy='zero1'"):
        with_tables(inner, "zero1", OneTable(), RowSGD(lr=1.0), collective, options)
    exact = StrategyOptions(reduction="exact", plan=None, seed=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="reduction='exact'"):
        make(OneTable(), RowSGD(lr=1.0), collective, exact)
    with pytest.raises(InvalidOption, match="placement names item"):
        ModelTables(OneTable(), Tables(RowSGD(lr=1.0), placement={"item": "rows"}), collective, seed=0)


def test_lazy_adam_is_sparse_adam() -> None:
    model = OneTable()
    tables = ModelTables(model, Tables(LazyAdam(lr=0.1)), SingleProcessCollective(), seed=3)
    with torch.no_grad():
        peer = nn.Embedding(ROWS, DIM, sparse=True, _weight=model.user(torch.arange(ROWS)).clone())
    optimizer = SparseAdam(peer.parameters(), lr=0.1)
    for step in range(5):
        looked_up = torch.tensor([1, 2, 2, 3 + step])
        for each in (model.user, peer):
            (each(looked_up) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        tables.step()
    torch.testing.assert_close(model.user(torch.arange(ROWS)).detach(), peer.weight.detach())


def test_rate_of_tables_follows_that_of_the_optimizer() -> None:
    collective, model = SingleProcessCollective(), OneTable()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, RowSGD(lr=1.0), collective, options)
    _, optimizer = strategy.prepare(model, partial(SGD, lr=0.1))
    for rate, change in ((0.1, 1.0), (0.05, 0.5)):
        before = model.user(torch.tensor([4]))
        optimizer.param_groups[0]["lr"] = rate
        before.sum().backward()
        optimizer.step()
        after = model.user(torch.tensor([4]))
        torch.testing.assert_close((before - after).detach(), torch.full((1, DIM), change))


def test_rate_of_tables_in_a_resumed_run_is_that_of_its_checkpoint() -> None:
    collective = SingleProcessCollective()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    saved: Any = None
    for rate in (0.1, 0.01):  # The second run is built with another rate, and goes on with the saved one.
        model = OneTable()
        inner = TorchDataParallel(collective, options)
        strategy = with_tables(inner, "ddp", model, RowSGD(lr=1.0), collective, options)
        _, optimizer = strategy.prepare(model, partial(SGD, lr=rate))
        if saved is not None:
            optimizer.load_state_dict(saved)
        before = model.user(torch.tensor([4]))
        before.sum().backward()
        optimizer.step()
        torch.testing.assert_close((before - model.user(torch.tensor([4]))).detach(), torch.ones(1, DIM))
        saved = optimizer.state_dict()
    assert saved["param_groups"][0]["lr"] == 0.1


class TablesOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = Table(ROWS, DIM)


def test_a_model_may_have_tables_and_no_parameter() -> None:
    collective, model = SingleProcessCollective(), TablesOnly()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, RowSGD(lr=1.0), collective, options)
    _, optimizer = strategy.prepare(model, partial(Adam, lr=0.1))
    before = model.user(torch.tensor([4]))
    before.sum().backward()
    assert float(strategy.clip_grad_norm(1e3)) == pytest.approx(DIM**0.5)
    optimizer.step()
    torch.testing.assert_close((before - model.user(torch.tensor([4]))).detach(), torch.ones(1, DIM))


@pytest.mark.parametrize("admission", [None, Admission()])
def test_zero_grad_discards_gradients_and_keeps_lookups(admission: Admission | None) -> None:
    collective, model = SingleProcessCollective(), OneTable(admission=admission)
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, RowSGD(lr=1.0), collective, options)
    _, optimizer = strategy.prepare(model, partial(SGD, lr=0.1))
    before = model.user(torch.tensor([4, 5])).detach().clone()
    model.user(torch.tensor([4])).sum().backward()
    optimizer.zero_grad()
    model.user(torch.tensor([4])).sum().backward()
    strategy.clip_grad_norm(1e3)
    optimizer.zero_grad()
    loss = model.user(torch.tensor([5])).sum()
    optimizer.zero_grad()  # Between the lookup and its backward, as many loops have it.
    loss.backward()
    optimizer.step()
    torch.testing.assert_close(
        before - model.user(torch.tensor([4, 5])).detach(), torch.tensor([[0.0], [1.0]]) * torch.ones(DIM)
    )


def test_monitors_name_table_and_row_alone() -> None:
    collective, model = SingleProcessCollective(), OneTable()
    options = StrategyOptions(reduction="mean", plan=None, seed=0)  # type: ignore[arg-type]
    strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, RowSGD(lr=1.0), collective, options)
    trained, optimizer = strategy.prepare(model, partial(SGD, lr=0.1))
    setup = TrainSetup(
        model=trained, optimizer=optimizer, device=collective.device, world_size=1, parts=strategy.local_parts()
    )
    norms, guard = EmbeddingNorms(5.0).attach(setup), NanGuard().attach(setup)
    (model.user(torch.tensor([66])) * 7).sum().backward()
    optimizer.step()
    for step in range(1, 9):
        norms.step(step, {})
        guard.step(step, {})
    assert "1 of the 70 rows of 'user' are longer than limit=5, the longest is row 66" in norms.verdict().reason
    assert guard.verdict().reason == ""
    (model.user(torch.tensor([3])) * float("nan")).sum().backward()
    optimizer.step()
    guard.step(9, {})
    assert "row 3 of table 'user' not finite" in guard.verdict().reason
    with pytest.raises(InvalidOption, match="the rows of user are none"):
        NoiseScale(min_batch=8, max_batch=64).attach(setup)
