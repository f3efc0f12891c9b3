"""Cost of a run: workers times time times the price of the machine that each start had."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.events import Failed, Started
from forebay.storage.json_file import Fact
from forebay.training.runs.timeline.cost import (
    GPUS,
    PRICE,
    PRICE_ON_DEMAND,
    UNKNOWN,
    RunCost,
    cost_of,
    total_cost,
    worker_hours,
)
from forebay.training.runs.timeline.timeline import RunStart, StartOrigin, TimedEvent, Timeline

HOUR = 3600.0


def started(at_s: float, size: int) -> TimedEvent:
    facts = {"world_size": size, "epochs": 1, "num_batches": 1}
    return TimedEvent(at_s=at_s, kind=Started.__name__, facts=facts)


def start(*sizes: tuple[float, int], last_s: float = HOUR, **config: Fact) -> RunStart:
    events = [started(at_s, size) for at_s, size in sizes]
    return RunStart(at=0.0, attempt=1, origin=StartOrigin(config=config), events=tuple(events), last_s=last_s)


def test_each_start_by_the_price_of_its_machine() -> None:
    cheap = start((0.0, 4), **{GPUS: 8, PRICE: 2.0})
    dear = start((0.0, 2), last_s=1800.0, **{GPUS: 4, PRICE: 10.0})
    assert cost_of(Timeline(starts=(cheap, dear))) == RunCost(gpu_hours=32.0 + 4.0, amount=8.0 + 10.0)


def test_workers_that_fell_back_from_spot_cost_their_own_price() -> None:
    events = (
        TimedEvent(at_s=at_s, kind=Started.__name__, facts={"world_size": size, "on_demand": dear})
        for at_s, size, dear in ((0.0, 4, 0), (1800.0, 4, 3), (2700.0, 2, None))
    )
    config: dict[str, Fact] = {GPUS: 1, PRICE: 1.0, PRICE_ON_DEMAND: 5.0}
    fell = RunStart(at=0.0, attempt=1, origin=StartOrigin(config=config), events=tuple(events), last_s=HOUR)
    assert cost_of(Timeline(starts=(fell,))) == RunCost(gpu_hours=3.5, amount=(3.5 - 0.75) * 1.0 + 0.75 * 5.0)
    unpriced = replace(fell, origin=StartOrigin(config={GPUS: 1, PRICE_ON_DEMAND: 5.0}))
    assert cost_of(Timeline(starts=(unpriced,))).amount is None


def test_workers_count_while_they_are_there() -> None:
    """Before the first step, and until lost ones are replaced, with the machines of that time."""
    grown = start((600.0, 2), (1800.0, 4))
    assert worker_hours(grown) == pytest.approx(2 * 0.5 + 4 * 0.5)
    lost = TimedEvent(at_s=900.0, kind=Failed.__name__, facts={"error": "x", "failures": 1, "will_retry": True})
    again = RunStart(
        at=0.0, attempt=1, origin=StartOrigin(), events=(started(0.0, 4), lost, started(1800.0, 4)), last_s=HOUR
    )
    assert worker_hours(again) == pytest.approx(4.0)
    assert worker_hours(start(**{"job.min_workers": 3})) == pytest.approx(3.0), "it prepares its data"


@pytest.mark.parametrize(
    "timeline",
    [
        Timeline(),
        Timeline(starts=(start((0.0, 1), **{GPUS: 1, PRICE: 1.0}),), omitted=1),
        Timeline(starts=(start((0.0, 1), **{GPUS: 1, PRICE: 1.0}),), damaged=1),
        Timeline(starts=(start((0.0, 1)),)),
    ],
)
def test_what_is_not_known_is_not_nothing(timeline: Timeline) -> None:
    assert cost_of(timeline) == UNKNOWN
    assert total_cost([UNKNOWN, RunCost(gpu_hours=1.0, amount=1.0)]) == UNKNOWN
    assert total_cost([]) == UNKNOWN


prices = st.none() | st.floats(0, 1000)
starts = st.lists(
    st.tuples(st.lists(st.tuples(st.floats(0, HOUR), st.integers(1, 64)), max_size=4), prices, st.integers(0, 8)),
    min_size=1,
    max_size=4,
)


@given(starts)
def test_a_cost_is_known_only_if_each_price_is(found: list[tuple[list[tuple[float, int]], float | None, int]]) -> None:
    made = [
        start(*sorted(sizes), last_s=HOUR, **({GPUS: gpus} | ({} if price is None else {PRICE: price})))
        for sizes, price, gpus in found
    ]
    cost = cost_of(Timeline(starts=tuple(made)))
    assert (cost.amount is None) == any(price is None for _, price, _ in found)
    assert (
        cost.gpu_hours is not None
        and 0
        <= cost.gpu_hours
        <= sum(gpus * max((size for _, size in sizes), default=0) for sizes, _, gpus in found) + 1e-6
    )
    one_by_one = total_cost(cost_of(Timeline(starts=(each,))) for each in made)
    assert cost.gpu_hours == pytest.approx(one_by_one.gpu_hours)
    assert cost.amount == pytest.approx(one_by_one.amount) if cost.amount is not None else one_by_one.amount is None
