"""Counters add up from any thread, and refuse undocumented names."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest

from forebay.errors import InvalidOption
from forebay.runtime.metrics import GAUGES, METRICS, Counters, exported_name


def test_adds_up_over_threads() -> None:
    counters = Counters({"hits": 5})
    threads = [threading.Thread(target=lambda: [counters.add("hits") for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters["hits"] == 8005
    assert counters["stores"] == 0


def test_times_and_differences() -> None:
    counters = Counters()
    before = counters.as_dict()

    def fail() -> None:
        with counters.timed("gather_s"):
            time.sleep(0.01)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    counters.merge({"rows": 7})
    assert counters.since(before)["rows"] == 7
    assert counters.since(before)["gather_s"] >= 0.01


def test_unknown_metrics_are_refused() -> None:
    with pytest.raises(InvalidOption, match="hitz"):
        Counters().add("hitz")
    assert all(meaning for meaning in METRICS.values())


def test_a_forked_child_can_count_whatever_the_parent_holds() -> None:
    counters = Counters()
    with counters._lock:
        child = os.fork()
        if child == 0:
            counters.add("hits")
            os._exit(int(counters["hits"]) + 40)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41


def test_exported_names_follow_prometheus() -> None:
    names = {exported_name(name) for name in (*METRICS, *GAUGES)}
    assert len(names) == len(METRICS) + len(GAUGES)
    for name in METRICS:
        seconds, size = name.endswith("_s"), name.endswith("_bytes")
        ending = "_seconds_total" if seconds else "_bytes_total" if size else "_total"
        assert re.fullmatch(r"forebay_[a-z_]+", exported_name(name)) and exported_name(name).endswith(ending)
    assert not any(exported_name(name).endswith("_total") for name in GAUGES)
    assert not METRICS.keys() & GAUGES.keys()
