from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

Bench = Callable[[str], ModuleType]


def test_lookups_of_all_ranks_are_the_same_at_any_number(bench: Bench) -> None:
    setting = bench("tables.setting").TableSetting
    small = {"ways": ("rows",), "rows": 1000, "batch": 50, "columns": 3}
    one = setting(workers=1, **small).lookups(4, 0)
    assert one.shape == (50, 3) and one.min() >= 0 and one.max() < 1000
    three = setting(workers=3, **small)
    np.testing.assert_array_equal(np.concatenate([three.lookups(4, rank) for rank in range(3)]), one)


def test_page_says_what_is_met_and_what_is_missed(bench: Bench) -> None:
    report = bench("tables.report")
    steps = {"seconds": [0.1, 0.2, 0.9], "cpu_s": [0.01] * 3, "sent_bytes": [2_000_000.0], "unique": [30_000.0]}
    rank = {"rows": {**steps, "memory_bytes": 350_000_000, "peak_bytes": 380_000_000}}
    rows = report.summarized([rank, rank], "rows")
    assert rows["seconds"] == 0.2
    dense = {**rows, "seconds": 10.0, "cpu_s": 0.1, "sent_bytes": 640_000_000.0}
    bench_setting = bench("tables.setting").TableSetting(ways=("rows",), workers=2)
    setting = {name: getattr(bench_setting, name) for name in ("rows", "dim", "batch", "columns", "power")}
    found = {
        "machine": {"cpu": "x", "cores": 2, "system": "Linux", "load_before": 0.0},
        "setting": setting,
        "two": {"rows": rows, "dense": dense},
        "four": {"rows": rows},
        "trained_steps": 11,
        "wire_errors": {"bfloat16": report.wire_error([1.0, 2.02], [1.0, 2.0])},
    }
    met = [each[3] for each in report.targets(found)]
    assert met == [True, True, False, True, True, False, True]
    assert "| fewer bytes than dense | >= 200x | 320x | met |" in report.report(found)
    assert "- bfloat16: 8.9e-03" in report.report(found)


@pytest.mark.variation("it starts 12 processes, and networks of their own, which need root")
def test_ways_send_what_they_are_said_to(bench: Bench) -> None:
    setting = bench("tables.setting").TableSetting(
        ways=("rows", "one owner", "dense"), workers=2, rows=5000, batch=200, steps=2, dense_steps=2
    )
    try:
        bench("tables.links").require_namespaces()
    except SystemExit as error:
        pytest.skip(str(error))
    ranks = bench("tables.world").run_world(setting)
    summarized = bench("tables.report").summarized
    rows, dense = summarized(ranks, "rows"), summarized(ranks, "dense")
    assert 0.8 < rows["sent_bytes"] / (rows["unique"] * 132 / 2) < 1.4
    assert 1.0 < dense["sent_bytes"] / (5000 * 16 * 4) < 1.3
    server = bench("tables.setting").TableSetting(ways=("server",), workers=2, rows=5000, batch=200, steps=2, mbit=100)
    ranks = bench("tables.world").run_world(server)
    assert 0.9 < ranks[2]["server"]["sent_bytes"][0] / (200 * 26 * 64) < 1.2
    assert min(ranks[0]["server"]["seconds"]) > 2 * 200 * 26 * 64 * 8 / 100e6 * 0.9
