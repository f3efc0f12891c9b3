"""Dispatch: which node builds the next block, at given loads and times."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack

import pytest
from tests.waiting import SetClock

from forebay.data.cache.data_nodes.dispatch import HERE, Dispatch
from forebay.errors import Cancelled


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def dispatch(clock: SetClock) -> Dispatch:
    """Dispatch of a node with 1 core and data nodes with 2 and 4, 8 builds each."""
    made = Dispatch(cores=1, num_reads=8, clock=clock)
    made.set_data_nodes({"two": 2, "four": 4})
    return made


def opened(dispatch: Dispatch, stack: ExitStack, count: int) -> Counter[str]:
    return Counter(stack.enter_context(dispatch.slot()) for _ in range(count))


def test_open_builds_are_shared_by_cores(dispatch: Dispatch) -> None:
    with ExitStack() as stack:
        assert opened(dispatch, stack, 7) == {HERE: 1, "two": 2, "four": 4}
        assert opened(dispatch, stack, 7) == {HERE: 1, "two": 2, "four": 4}
    with dispatch.slot() as name:
        assert name == "four", "all of them have ended"


def test_without_data_nodes_all_is_built_here(dispatch: Dispatch) -> None:
    dispatch.set_data_nodes({})
    with ExitStack() as stack:
        assert opened(dispatch, stack, 8) == {HERE: 8}


def test_slow_node_gets_fewer(dispatch: Dispatch) -> None:
    dispatch.set_data_nodes({"a": 1, "b": 1})
    given: Counter[str] = Counter()
    with ExitStack() as slow:
        for _ in range(30):
            stack = ExitStack()
            name = stack.enter_context(dispatch.slot())
            given[name] += 1
            if name == "a":
                slow.push(stack)  # is never done
            else:
                stack.close()
    assert given == {"a": 1, "b": 29}


def test_waits_for_room_when_all_nodes_are_full(dispatch: Dispatch) -> None:
    taken: list[str] = []

    def take() -> None:
        with dispatch.slot() as name:
            taken.append(name)

    thread = threading.Thread(target=take)
    with ExitStack() as stack:
        assert opened(dispatch, stack, 14) == {HERE: 2, "two": 4, "four": 8}
        thread.start()
        thread.join(0.05)
        assert taken == []
    thread.join(10)
    assert len(taken) == 1


def test_new_data_node_takes_what_waits(dispatch: Dispatch) -> None:
    dispatch.set_data_nodes({})
    taken: list[str] = []

    def take() -> None:
        with dispatch.slot() as name:
            taken.append(name)

    thread = threading.Thread(target=take)
    with ExitStack() as stack:
        opened(dispatch, stack, 8)
        thread.start()
        dispatch.set_data_nodes({"new": 2})
        thread.join(10)
    assert taken == ["new"]


def test_failed_node_is_skipped_and_its_failures_outlive_its_actor(dispatch: Dispatch, clock: SetClock) -> None:
    assert dispatch.record_failure("four")
    assert not dispatch.record_failure("four"), "the other open builds of the same node"
    with ExitStack() as stack:
        assert opened(dispatch, stack, 6) == {HERE: 2, "two": 4}
    clock.now = 31.0
    dispatch.set_data_nodes({"two": 2})
    dispatch.set_data_nodes({"two": 2, "four": 4})
    with dispatch.slot() as name:
        assert name == "four"
    assert dispatch.record_failure("four")
    clock.now = 31.0 + 59.0
    with dispatch.slot() as name:
        assert name == "two", "the second failure in a row costs twice the time"


def test_only_here(dispatch: Dispatch) -> None:
    with ExitStack() as stack:
        assert {stack.enter_context(dispatch.slot(only_here=True)) for _ in range(8)} == {HERE}


def test_close_ends_waiting(dispatch: Dispatch) -> None:
    dispatch.set_data_nodes({})
    ended = threading.Event()

    def take() -> None:
        with pytest.raises(Cancelled), dispatch.slot():
            pass
        ended.set()

    with ExitStack() as stack:
        opened(dispatch, stack, 8)
        threading.Thread(target=take).start()
        dispatch.close()
        assert ended.wait(10)


def test_large_node_has_two_builds_per_core(dispatch: Dispatch) -> None:
    dispatch.set_data_nodes({"large": 32})
    with ExitStack() as stack:
        assert opened(dispatch, stack, 66) == {HERE: 2, "large": 64}
