"""Laws of placements of tables, as tests: any way to share rows over ranks trains as one process does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.clicks import ITEMS, PADDING, USERS, Clicks, clicks
from tests.tables.training import ClickResult, ClickRun, continued, train_clicks, train_dense
from torch import Tensor

from forebay.training.tables.optimizers import LazyAdam, RowOptimizer, RowSGD, RowWiseAdagrad
from forebay.training.tables.options import Tables

Ranks = Callable[..., list[Any]]
CLOSE = 1e-5
OPTIMIZERS: Mapping[str, RowOptimizer] = {
    "adagrad": RowWiseAdagrad(lr=0.05),
    "sgd": RowSGD(lr=0.1),
    "adam": LazyAdam(lr=0.01),
    "decayed adagrad": RowWiseAdagrad(lr=0.05, weight_decay=0.1),
    "decayed adam": LazyAdam(lr=0.01, weight_decay=0.1),
}
IDS: Mapping[str, Callable[[Clicks], Clicks]] = {
    "all equal": lambda batch: replace(batch, user=batch.user * 0, items=batch.items * 0 + 3),
    "empty bags": lambda batch: replace(batch, lengths=batch.lengths * 0),
    "padding alone": lambda batch: replace(batch, items=batch.items * 0 + 7),
    "two rows": lambda batch: Clicks(
        **{name: getattr(batch, name)[:2] for name in ("user", "items", "lengths", "label")}
    ),
    "negative": lambda batch: replace(batch, user=-batch.user - 1, items=batch.items - ITEMS),
    "beyond the table": lambda batch: replace(batch, user=batch.user + USERS, items=batch.items + (1 << 62)),
}
"""Batches that are easy to get wrong. With two rows, ranks beyond the second one have none."""


NUM_GENERATED = 12
_WORD = 1 << 63


def _ids(rows: int) -> st.SearchStrategy[int]:
    hard = st.sampled_from([0, 1, PADDING, rows - 1, rows, -1, -_WORD, _WORD - 1])
    return hard | st.integers(0, rows - 1)


@st.composite
def generated_clicks(draw: st.DrawFn) -> Clicks:
    """Draw a global batch of 1 to 9 rows: few or many equal ids, valid or not, and empty or full bags."""
    size, width = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    user = draw(st.lists(_ids(USERS), min_size=size, max_size=size))
    items = draw(st.lists(_ids(ITEMS), min_size=size * width, max_size=size * width))
    lengths = draw(st.lists(st.integers(0, width), min_size=size, max_size=size))
    return Clicks(
        user=torch.tensor(user),
        items=torch.tensor(items).view(size, width),
        lengths=torch.tensor(lengths),
        label=torch.linspace(-1, 1, size),
    )


class PlacementSuite:
    """Laws of one placement. A subclass sets `placement`, and its module has a fixture `importing_ranks`.

    `importing_ranks(size, work, *args)` returns what `work(collective, *args)` returns on each rank of a world.
    """

    placement: ClassVar[str]

    def run(self, optimizer: RowOptimizer, **options: Any) -> ClickRun:
        wire = options.pop("wire", "float32")
        return ClickRun(tables=Tables(optimizer, placement=self.placement, wire=wire), **options)

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_tables_train_as_in_one_process(self, importing_ranks: Ranks, name: str) -> None:
        run = self.run(OPTIMIZERS[name])
        wanted = train_dense(run)
        for size in (2, 3):
            for found in importing_ranks(size, train_clicks, None, run, {}):
                assert_close(found, wanted)

    @pytest.mark.parametrize("kind", IDS)
    def test_any_ids_train_as_in_one_process(self, importing_ranks: Ranks, kind: str) -> None:
        run = self.run(OPTIMIZERS["adagrad"], steps=4, batch_of=ChangedClicks(kind))
        for found in importing_ranks(3, train_clicks, None, run, {}):
            assert_close(found, train_dense(run))

    def test_generated_ids_train_as_in_one_process(self, importing_ranks: Ranks) -> None:
        @settings(max_examples=NUM_GENERATED)
        @given(batches=st.lists(generated_clicks(), min_size=1, max_size=4), size=st.integers(2, 4))
        def trains_as_in_one_process(batches: Sequence[Clicks], size: int) -> None:
            run = self.run(OPTIMIZERS["adagrad"], steps=len(batches), batch_of=GivenClicks(batches))
            wanted = train_dense(run)
            for found in importing_ranks(size, train_clicks, None, run, {}):
                assert_close(found, wanted)

        trains_as_in_one_process()

    def test_clipping_counts_tables_and_parameters_together(self, importing_ranks: Ranks) -> None:
        run = self.run(OPTIMIZERS["sgd"], max_norm=0.05)
        wanted = train_dense(run)
        assert_differ(wanted, train_dense(replace(run, max_norm=None)))
        for found in importing_ranks(2, train_clicks, None, run, {}):
            assert_close(found, wanted)

    def test_saved_rows_go_on_in_any_world(self, importing_ranks: Ranks) -> None:
        """As 2, 4, 3 and 1 ranks, and in one of them without a change: to the bit."""
        run = self.run(OPTIMIZERS["decayed adam"], steps=5)
        saved: Mapping[str, Any] = {}
        for size in (2, 4, 3, 1):
            found = importing_ranks(size, train_clicks, None, run, saved)[0]
            saved, run = found.state, continued(run, 5)
        assert_close(found, train_dense(self.run(OPTIMIZERS["decayed adam"], first=15, steps=5)))

    def test_resumed_run_repeats_every_bit(self, importing_ranks: Ranks) -> None:
        run = self.run(OPTIMIZERS["decayed adagrad"], steps=24)  # "auto" decides after step 20.
        whole = importing_ranks(2, train_clicks, None, run, {})[0]
        for cut in (9, 22):
            first = importing_ranks(2, train_clicks, None, replace(run, steps=cut), {})[0]
            rest = importing_ranks(2, train_clicks, None, continued(replace(run, steps=cut), 24 - cut), first.state)[0]
            assert rest.losses == whole.losses[cut:]
            assert all(torch.equal(rest.dense[name], values) for name, values in whole.dense.items())
            assert_same_tables(rest, whole)

    @pytest.mark.variation("30 steps are tested by default, and fewer with each kind of ids")
    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_long_run_is_that_of_one_process_and_repeats_every_bit(self, importing_ranks: Ranks, size: int) -> None:
        """200 steps with all kinds of ids. Twice in one piece, and once with a resume."""
        steps, cut = 200, 137
        run = self.run(OPTIMIZERS["adagrad"], steps=steps, batch_of=mixed_clicks)
        wanted = train_dense(run)
        whole, again = (importing_ranks(size, train_clicks, None, run, {}) for _ in range(2))
        first = importing_ranks(size, train_clicks, None, replace(run, steps=cut), {})[0]
        rest = continued(replace(run, steps=cut), steps - cut)
        resumed = importing_ranks(size, train_clicks, None, rest, first.state)
        for found, other, late in zip(whole, again, resumed, strict=True):
            assert_close(found, wanted)
            assert found.losses == other.losses == first.losses + late.losses
            assert_same_tables(other, found)
            assert_same_tables(late, found)

    @pytest.mark.parametrize(("wire", "error"), [("bfloat16", 2e-2), ("float16", 3e-3)])
    def test_short_numbers_on_the_wire_change_little(self, importing_ranks: Ranks, wire: str, error: float) -> None:
        run = self.run(OPTIMIZERS["adagrad"], wire=wire)
        found = importing_ranks(2, train_clicks, None, run, {})[0]
        assert_close(found, train_dense(run), tolerance=error)


def mixed_clicks(step: int) -> Clicks:
    """Return usual batches, and every fifth time one of the `IDS`, in turns."""
    batch, kinds = clicks(step), list(IDS.values())
    return batch if step % 5 else kinds[step // 5 % len(kinds)](batch)


class ChangedClicks:
    """Batches of one kind of ids."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, step: int) -> Clicks:
        return IDS[self._kind](clicks(step))


class GivenClicks:
    """The batches of a list, step by step."""

    def __init__(self, batches: Sequence[Clicks]) -> None:
        self._batches = batches

    def __call__(self, step: int) -> Clicks:
        return self._batches[step]


def assert_close(found: ClickResult, wanted: ClickResult, tolerance: float = CLOSE) -> None:
    """Assert that losses, parameters and tables are equal up to `tolerance`, absolute and relative."""
    _assert_close(torch.tensor(found.losses), torch.tensor(wanted.losses), tolerance)
    for name, table in wanted.tables.items():
        for key, values in table.items():
            _assert_close(found.tables[name][key], values, tolerance)
    for name in ("out.weight", "out.bias"):
        _assert_close(found.dense[name], wanted.dense[name], tolerance)


def assert_differ(one: ClickResult, other: ClickResult) -> None:
    """Assert that two runs did not train the same."""
    assert not torch.allclose(torch.tensor(one.losses), torch.tensor(other.losses), rtol=1e-3)


def assert_same_tables(one: ClickResult, other: ClickResult) -> None:
    """Assert that all tables are equal to the bit."""
    for name, tensors in other.tables.items():
        for key, values in tensors.items():
            assert torch.equal(one.tables[name][key], values), f"{name}.{key}"


def _assert_close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
