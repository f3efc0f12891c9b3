"""The sweep bench: a counting source, conclusions about row groups from its counts, and their text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

Bench = Callable[[str], ModuleType]
ROWS = 1_600


def store(endpoint: str) -> fs.S3FileSystem:
    return fs.S3FileSystem(anonymous=True, endpoint_override=endpoint, scheme="http", region="us-east-1")


def test_source_lists_and_sends_and_counts_every_byte(bench: Bench, tmp_path: Path) -> None:
    source_of = bench("sweep.source")
    folder = tmp_path / "set" / "below"
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes(range(100)))
    (tmp_path / "set" / "b.bin").write_bytes(b"b")
    with source_of.serving(tmp_path) as source:
        client = store(source.endpoint)
        listed = client.get_file_info(fs.FileSelector("bucket/set", recursive=True))
        assert {info.path for info in listed if info.is_file} == {"bucket/set/below/a.bin", "bucket/set/b.bin"}
        assert [info.base_name for info in client.get_file_info(fs.FileSelector("bucket/set"))] == ["below", "b.bin"]
        assert source.counts().sent_bytes == 0
        with client.open_input_file("bucket/set/below/a.bin") as file:
            assert file.read_at(10, 30) == bytes(range(30, 40))
            assert file.read_at(10, 95) == bytes(range(95, 100))
        assert source.counts().ranges == {("set/below/a.bin", 30, 40): 1, ("set/below/a.bin", 95, 100): 1}
        assert (source.counts().sent_bytes, source.counts().reads) == (15, 2)
        source.forget()
        with pytest.raises(FileNotFoundError):
            client.open_input_file("bucket/set/none")
        assert source.counts().reads == 0


def test_row_groups_are_counted_whoever_reads_them(bench: Bench, tmp_path: Path) -> None:
    counts_of, work = bench("sweep.counts"), bench("sweep.work")
    folder = bench("loader.data").make("dense", tmp_path, rows=ROWS, row_groups=16)
    groups = counts_of.row_groups(folder)
    assert (len(groups), groups[-1].first + groups[-1].rows) == (16, ROWS)
    lines = [{"spans": [(0, 150)]}, {"spans": [(0, 50), (100, 1600)]}]
    with bench("sweep.source").serving(tmp_path) as source:
        client = store(source.endpoint)
        for group in groups + groups[:4]:
            with client.open_input_file(f"bucket/{group.path}") as file:
                # Like a reader: a bit more than the row group, and in two steps.
                middle = (group.start + group.stop) // 2
                file.read_at(middle - group.start, group.start)
                file.read_at(group.stop - middle + 100, middle)
        counters = counts_of.counters(groups, source.counts(), lines)
    assert 1.0 <= counters.sent[0] < 1.2
    assert 2.0 <= counters.sent[1] < 2.2
    assert counters.read == (1, 2)
    assert 20 / 16 <= counters.passes < 1.4
    assert counters.sent_bytes > counters.data_bytes
    assert counters.transformed == (1.0, 1.5)
    assert counters.transform_passes == pytest.approx((150 + 50 + 1500) / ROWS)
    numbers = np.array([7, 8, 9, 3, 4, 20])
    assert work.spans(numbers) == [(7, 10), (3, 5), (20, 21)]


def test_transform_is_one_function_of_rows_and_trials_check_what_came(bench: Bench, tmp_path: Path) -> None:
    work, log = bench("sweep.work"), str(tmp_path / "log")
    rows = np.random.default_rng(0).standard_normal((50, work.NUM_COLUMNS), dtype=np.float32)
    rows[:, 0] = np.arange(50)
    made, again = (work.arrays(part, part[:, 1], log) for part in (rows, rows[::-1]))
    np.testing.assert_array_equal(made["x"], again["x"][::-1])
    # These values already belong to a normal variable.
    assert np.abs(made["x"] - rows[:, 1:])[np.abs(rows[:, 1:]) < 2].max() < 0.01
    assert len(bench("notes").read_notes(log)) == 2
    account = work.WorkTotals("0")
    account.take([np.array([0.0, 1.0]), np.array([1.0, 3.0])], 5)
    assert (account.rows, account.lost, account.repeated) == (4, 2, 1)


def _result(name: str, repeat: int, times: float, wall_s: float, *, ours: bool = False) -> dict[str, Any]:
    read = {"sent_bytes": int(times * 1e6), "data_bytes": int(times * 1e6), "reads": 1, "passes": times}
    facts = {"version": "1", "shares": "s", "shuffled": "no", "resumes": "r", "note": ""}
    trial = {"epochs": 3, "lost": 0, "repeated": 0, "neighbours": 0.0}
    return {
        "name": name,
        "ours": ours,
        "repeat": repeat,
        "facts": facts,
        "wall_s": wall_s,
        "sweep_s": wall_s - 2,
        "read": read | {"read": [1, 1], "transformed": [times, times], "transform_passes": times},
        "trials": [trial] * 8,
    }


def test_report_holds_ratios_of_one_round_against_targets(bench: Bench, tmp_path: Path) -> None:
    report = bench("sweep.report")
    results = [
        *(_result(report.OURS, repeat, 1.0, 10.0 * (repeat + 1), ours=True) for repeat in range(3)),
        *(_result(report.PEERS[0], repeat, 24.0, 30.0 * (repeat + 1)) for repeat in range(3)),
        *(_result(report.PEERS[1], repeat, 7.0, 15.0 * (repeat + 1)) for repeat in range(3)),
        {"name": report.PEERS[2], "ours": False, "repeat": 0, "error": "pip could not"},
    ]
    machine = {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5}
    document = {
        "machine": machine,
        "options": {"rows": 10, "repeats": 3, "trials": 8, "concurrent": 2, "epochs": 3},
        "data_bytes": 1_000_000,
        "row_groups": 4,
        "took_s": 60.0,
        "results": results,
        "many": [_result("", 0, 1.0, 5.0) | {"what": "4 trials"}, {"what": "8 trials", "error": "no"}],
    }
    text = report.report(document)
    assert f"| source bytes, against {report.PEERS[0]} | <= 0.125 | 0.042 | met |" in text
    assert f"| wall time, against {report.PEERS[0]} | <= 0.5 | 0.333 | met |" in text
    assert f"| source bytes, against {report.PEERS[1]} | <= 0.125 | 0.143 | **missed** |" in text
    assert f"| wall time, against {report.PEERS[1]} | <= 0.5 | 0.667 | **missed** |" in text
    assert f"| wall time, against {report.PEERS[2]} | <= 0.5 | not measured |  |" in text
    assert "| 4 trials | 8 | 1 | 1 | 1.0 MB |" in text
    assert f"- {report.PEERS[2]}: pip could not" in text
    assert "- 8 trials: no" in text
    report.plot(document, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 1000
