"""The benches of a GPU's feed and of many cores run in small on any machine, and their tables and page follow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.device import clicks, feed
from bench.device.report import BEGIN, END, PAGE, cores_rows, feed_rows, model_rows, page_with
from bench.own import cores
from bench.turns import numbers_of, touched

FACTS = {
    "cpu": "a CPU", "usable_cores": 2.0, "memory_bytes": 1 << 30, "gpus": ["a GPU"], "python": "3", "torch": "2",
    "pyarrow": "1", "date": "2026-01-02", "commit": "abc", "rows": 4096, "row_bytes": 612, "source_bytes_per_row": 800,
    "folder": "/tmp",
}  # fmt: skip
Said = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folder of data as the parent of a turn makes it, without its processes."""
    for name in ("data", "small"):
        (tmp_path / name).mkdir()
        clicks._write_file(tmp_path / name, 256, True, 0)
    return tmp_path


@pytest.mark.smoke
def test_a_turn_of_each_bench_says_what_its_table_needs(data: Path, said: Said) -> None:
    places = {"folder": str(data), "data": str(data / "data"), "work": str(data / "work")}
    shared = places | {"seconds": 0.1, "processes": 1, "batches": [256]}
    feed.child(shared | {"system": "forebay"})
    fed = [FACTS | {"bench": "feed"}, *({"system": "forebay", "data_workers": "threads"} | line for line in said())]
    assert [line["phase"] for line in fed[1:]] == ["ceiling", "cold", "cached"]
    assert fed[2]["counters"]["stores"] == clicks.GROUPS_PER_FILE
    assert len(feed_rows(fed)) == 4 and len(model_rows(fed)) == 3

    cores.arrow(shared | {"cores": 1, "rows": 1024})
    cores.forebay(shared)
    lines = [line | {"system": "forebay", "cores": 1} for line in said()]
    assert {line["phase"] for line in lines} == {"start", "cold", "cached", "no room", "decode", "numpy take"}
    failed = {"system": "torch DataLoader", "cores": 1, "failed": "no time was left"}
    rows = cores_rows([FACTS | {"bench": "cores"}, *lines, failed])
    assert "no time was left" in rows[-1][0]
    page = page_with(PAGE.read_text(), fed, [])
    assert "commit abc: a CPU" in page and page.count(BEGIN) == page.count(END) == 1
    assert page_with(page, fed, []) == page


def test_needs_of_a_larger_machine_are_those_of_a_row_at_the_ceiling() -> None:
    way = {"system": "forebay", "data_workers": "processes", "batch": 8192}
    top = way | {"phase": "ceiling", "mrows_s": 2.5, "cores": 1.0, "cpu_s_per_mrow": 0.4}
    cold = way | {"phase": "cold", "mrows_s": 2.0, "of_ceiling": 0.8, "cpu_s_per_mrow": 2.4}
    (row,) = model_rows([FACTS | {"bench": "feed"}, top, cold])[1:]
    # 2.5 M rows/s of 2.0 CPU s for each million, and one core for the steps; 800 bytes of each row.
    assert row[3:] == ("2.00", "6.0", "48", "yes", "16.0")


@pytest.mark.parametrize("main", [feed.main, cores.main])
def test_tables_can_be_made_of_an_earlier_run(
    main: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "earlier"
    earlier.write_text("words\n" + json.dumps({"system": "petastorm", "cores": 1, "failed": "not installed here"}))
    monkeypatch.setattr(sys, "argv", ["bench", "--markdown", "--of", str(earlier)])
    main()
    assert "| petastorm: not installed here |" in capsys.readouterr().out


def test_memory_is_touched_twice_and_given_back(tmp_path: Path) -> None:
    line = touched(tmp_path, (8 << 20) + 5)
    assert line["bytes"] == (8 << 20) + 5 and len(line["seconds"]) == len(line["gb_s"]) == 2
    assert not list(tmp_path.iterdir())
    lines = [FACTS | {"bench": "cores"}, line]
    assert len(cores_rows(lines)) == len(feed_rows(lines)) == 1, "it is no row of a table"


def test_numbers_may_have_underscores() -> None:
    assert numbers_of("8_192,65536") == [8192, 65_536]


def test_all_cores_are_among_those_that_are_measured() -> None:
    assert cores._counts(1) == [1] and cores._counts(12) == [1, 2, 4, 8, 12] and cores._counts(16) == [1, 2, 4, 8, 16]


@pytest.mark.variation  # a process for each way; the turns above run the same code
@pytest.mark.parametrize("name", ["bench.device.feed", "bench.own.cores"])
def test_a_bench_runs_as_a_user_runs_it(name: str) -> None:
    line = [sys.executable, "-m", name, "--rows", "4096", "--seconds", "60", "--data-workers", "threads"]
    line += ["--batches", "512"] if name.endswith("feed") else ["--cores", "1"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "forebay, threads as data workers, cached" in done.stdout
    assert '"failed": "ended' not in done.stdout
