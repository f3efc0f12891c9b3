"""The side-by-side bench at a tiny scale: its data, its consumer, its arithmetic, and the systems without extras."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

Bench = Callable[[str], ModuleType]
ROWS = 2_000


@pytest.mark.parametrize("kind", ["dense", "mixed"])
def test_data_is_deterministic_and_numbered(bench: Bench, tmp_path: Path, kind: str) -> None:
    data, features = bench("loader.data"), bench("loader.features")
    first, second = (data.make(kind, tmp_path / name, rows=ROWS, row_groups=16) for name in "ab")
    assert data.digest(first) == data.digest(second)
    groups = [pq.read_metadata(path).num_row_groups for path in sorted(first.glob("*.parquet"))]
    assert (len(groups), sum(groups)) == (8, 16)
    batch = features.pack(pq.read_table(first), kind)
    assert features.row_numbers(batch, kind).tolist() == list(range(ROWS))
    assert all(array.flags.c_contiguous and len(array) == ROWS for array in batch.values())


def test_rows_one_by_one_make_the_same_batch_as_columns(bench: Bench, tmp_path: Path) -> None:
    data, features, rows = bench("loader.data"), bench("loader.features"), bench("loader.rows")
    path = next(data.make("mixed", tmp_path, rows=ROWS, row_groups=16).glob("*.parquet"))
    table = pq.read_table(path)
    wanted = features.pack(table, "mixed")
    for batch in (rows.pack_rows(table.to_pylist(), "mixed"), rows.stack(list(rows.samples(path, "mixed")))):
        assert batch.keys() == wanted.keys()
        for name, array in wanted.items():
            assert batch[name].dtype == array.dtype, name
            np.testing.assert_array_equal(batch[name], array, err_msg=name)


def _batches(numbers: list[int], size: int = 4) -> list[dict[str, np.ndarray]]:
    x = np.zeros((len(numbers), 100), dtype=np.float32)
    x[:, 0] = numbers
    return [{"x": x[start : start + size]} for start in range(0, len(numbers), size)]


def test_consumer_sees_lost_and_repeated_rows(bench: Bench) -> None:
    consumer = bench("loader.consumer")
    options = {"consumer": consumer.CONSUMERS["touch"], "kind": "dense", "num_rows": 10, "limit_s": 60}
    account = consumer.consume(_batches([*range(8), 7, 7]), **options)
    assert (account.rows, account.batches, account.lost, account.repeated) == (10, 3, 2, 2)
    assert account.complete
    shuffled = consumer.consume(_batches([3, 1, 7, 5, 9, 0, 2, 8, 6, 4]), **options)
    plain = consumer.consume(_batches(list(range(10))), **options)
    assert (shuffled.lost, shuffled.repeated) == (0, 0)
    assert shuffled.sums == plain.sums
    assert shuffled.order != plain.order
    assert (plain.neighbours, shuffled.neighbours) == (1.0, 0.0)


def test_consumer_stops_at_its_limit_and_calls_nothing_lost(bench: Bench) -> None:
    consumer = bench("loader.consumer")
    account = consumer.consume(
        _batches(list(range(10))), consumer.CONSUMERS["count"], kind="dense", num_rows=10, limit_s=0
    )
    assert (account.rows, account.complete, account.lost) == (4, False, 0)


def test_consumer_refuses_what_is_not_packed(bench: Bench) -> None:
    with pytest.raises(ValueError, match="'x' .* is not packed"):
        bench("loader.consumer").touch({"x": np.zeros((4, 8), dtype=np.float32)[:, ::2]})


def _result(name: str, repeat: int, **rates: float) -> dict[str, Any]:
    account = {"complete": True, "lost": 0, "repeated": 0, "neighbours": 0.0, "order": "o", "sums": {"x": 5}}
    account |= {"waiting": 0.02, "waiting_after_first": 0.005, "first_batch_s": 0.1, "all_peak_rss_bytes": 1 << 20}
    facts = {"version": "1", "shuffled": "yes", "packed": "yes", "deterministic": "yes", "note": "converted"}
    phases = {phase.replace("_", " "): account | {"rows_per_s": rate} for phase, rate in rates.items()}
    return {"name": name, "kind": "dense", "repeat": repeat, "phases": phases, "facts": facts, "prepare_s": 3.0}


def test_ratios_pair_the_repeats(bench: Bench) -> None:
    figures = bench("loader.figures")
    results = [
        *(_result("Forebay", repeat, later=100.0 * 2**repeat, first=10, count=1, step=1) for repeat in range(3)),
        *(_result("petastorm, disk cache", repeat, later=5.0 * 2**repeat) for repeat in range(2)),
        {"name": "petastorm", "error": "no pip"},
    ]
    found = {figure["figure"]: figure for figure in figures.figures(results, [0.2, 0.4, 0.5])}
    cached = found["dense: cached epoch against petastorm's cached epoch"]
    assert (cached["measured"], cached["passed"]) == (20, True)
    assert "in 2 repeats" in cached["note"]
    cold = found["dense: cold epoch with cache fill against petastorm without cache"]
    assert (cold["measured"], cold["passed"]) == (None, False)
    waiting = found["dense: share of time waiting, consumer of 2 ms steps, cached, after the first batch"]
    assert (waiting["measured"], waiting["passed"]) == (0.5, True)
    warm = found["time to first batch, warm start in a new process, 120 row groups"]
    assert (warm["measured"], warm["passed"]) == (0.4, False)


def test_report_shows_misses_failures_and_stopped_epochs(bench: Bench, tmp_path: Path) -> None:
    results = [
        _result("Forebay", 0, first=10.0, later=1e6),
        _result("slow", 0, later=20.0),
        {"name": "gone", "error": "why"},
    ]
    results[1]["phases"]["later"] |= {"complete": False}
    results[0]["phases"]["later"] |= {"lost": 3}
    miss = {"figure": "f", "target": ">= 2", "measured": 1.234, "unit": "x", "passed": False, "note": "n"}
    machine = {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5}
    options = {"rows": 10, "repeats": 1, "threads": 2, "limit_s": 8.0}
    found = {"machine": machine, "options": options, "took_s": 60, "results": results}
    text = bench("loader.report").report(found | {"figures": [miss, miss | {"measured": None}]})
    assert "| f | >= 2 | 1.23 x | **missed** | n |" in text
    assert "| f | >= 2 | - | not measured | n |" in text
    assert "> 20 (20-20)" in text
    assert "- gone (install): why" in text
    assert "Rows lost or repeated in complete epochs: Forebay" in text
    bench("loader.plot").plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["dense", "mixed"])
def test_forebay_gather_and_pyarrow_bring_every_row(bench: Bench, tmp_path: Path, kind: str) -> None:
    """All run in processes of their own, like the bench. Forebay and the bare gather deliver the same batches."""
    measuring, peers = bench("loader.measuring"), bench("loader.peers")
    folder = bench("loader.data").make(kind, tmp_path, rows=ROWS, row_groups=16)
    tiny = measuring.Bench(
        work=tmp_path / "work", rows=ROWS, threads=2, limit_s=60, pythons={peers.OWN: Path(sys.executable)}
    )
    entries = [entry for entry in peers.ENTRIES if entry.venv == peers.OWN]
    if kind == "mixed":
        entries = entries[:2]
    answers = {entry.name: measuring.measure(tiny, entry, kind, folder, repeat=0) for entry in entries}
    for name, answer in answers.items():
        for phase, account in answer["phases"].items():
            found = (account["rows"], account["lost"], account["repeated"])
            assert found == (5 * ROWS if phase == "several" else ROWS, 0, 0), (name, phase)
    forebay, limit = answers["Forebay"]["phases"], answers["limit: bare gather in memory"]["phases"]
    assert forebay["later"]["order"] == limit["later"]["order"]
    assert forebay["later"]["sums"] == limit["later"]["sums"]
    assert forebay["several"]["order"] != forebay["later"]["order"]
    assert forebay["warm"]["order"] == forebay["first"]["order"] != forebay["later"]["order"]


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["dense", pytest.param("mixed", marks=pytest.mark.variation)])
def test_no_byte_is_moved_twice(bench: Bench, tmp_path: Path, kind: str) -> None:
    """The counts of the bench meet their targets, with blocks as large as the bench's.

    A file that is written twice, a column that is read twice and a cached block that is read again all miss them.
    """
    measuring, peers, figures = bench("loader.measuring"), bench("loader.peers"), bench("loader.figures")
    rows = 6 * 65_536  # New files of the index and of footers, 0.7 MB, are less than 0.5 % of it.
    folder = bench("loader.data").make(kind, tmp_path, rows=rows, row_groups=24)
    small = measuring.Bench(
        work=tmp_path / "work", rows=rows, threads=1, limit_s=300, pythons={peers.OWN: Path(sys.executable)}
    )
    run = peers.PeerRun(phases=(("first", 0, "touch", 1), ("later", 1, "touch", 1)))
    entry = peers.PeerEntry(name=figures.FOREBAY, system="forebay_cached", runs=(run,))
    answer = measuring.measure(small, entry, kind, folder, repeat=0)
    assert "error" not in answer, answer
    found = [
        figure
        for figure in figures.figures([{"name": entry.name, "kind": kind, "repeat": 0} | answer], [])
        if "bytes" in figure["figure"]
    ]
    assert len(found) == 3
    assert [figure for figure in found if not figure["passed"]] == []
    first, later = answer["phases"]["first"], answer["phases"]["later"]
    assert first["bytes"] == later["bytes"] == first["counters"]["stored_bytes"]
    assert later["counters"]["hit_bytes"] == later["bytes"]
    assert first["counters"]["parquet_opens"] == 24


PEER_PACKAGES = {"huggingface": "datasets", "lancedb": "lancedb"}
"""Environment -> package without which the test of its systems is skipped."""


@pytest.mark.parametrize(
    "name",
    [
        "HF datasets, streaming",
        pytest.param("HF datasets, streaming, local shuffle", marks=pytest.mark.variation),
        pytest.param("HF datasets, map-style", marks=pytest.mark.variation),
        pytest.param("HF datasets, map-style, shuffled", marks=pytest.mark.variation),
        pytest.param("HF datasets, map-style, local shuffle", marks=pytest.mark.variation),
        pytest.param("LanceDB StreamingDataset", marks=pytest.mark.variation),
        pytest.param("LanceDB StreamingDataset, clumps", marks=pytest.mark.variation),
        pytest.param("FuxiCTR's HF loader", marks=pytest.mark.variation),
    ],
)
def test_peers_bring_every_row_and_the_same_bytes(bench: Bench, tmp_path: Path, name: str) -> None:
    """Of the mixed set. A peer that says it shuffles hands out other orders in other epochs."""
    measuring, peers = bench("loader.measuring"), bench("loader.peers")
    data, features, consumer = bench("loader.data"), bench("loader.features"), bench("loader.consumer")
    (entry,) = (entry for entry in peers.ENTRIES if entry.name == name)
    pytest.importorskip(PEER_PACKAGES[entry.venv])
    folder = data.make("mixed", tmp_path, rows=ROWS, row_groups=16)
    tiny = measuring.Bench(
        work=tmp_path / "work", rows=ROWS, threads=2, limit_s=60, pythons={entry.venv: Path(sys.executable)}
    )
    answer = measuring.measure(tiny, entry, "mixed", folder, repeat=0)
    assert "error" not in answer, answer
    wanted = consumer.touch(features.pack(pq.read_table(folder), "mixed"))
    orders = set()
    for phase, account in answer["phases"].items():
        found = (account["rows"], account["lost"], account["repeated"])
        assert found == (ROWS, 0, 0), phase
        assert {array: account["sums"][array] for array in ("ids", "tags", "city")}.items() <= wanted.items(), phase
        orders.add(account["order"])
    assert (len(orders) > 1) == (answer["facts"]["shuffled"] != "no")


def test_a_system_that_fails_is_reported(bench: Bench, tmp_path: Path) -> None:
    measuring, peers = bench("loader.measuring"), bench("loader.peers")
    folder = bench("loader.data").make("dense", tmp_path, rows=64, row_groups=1)
    tiny = measuring.Bench(work=tmp_path / "w", rows=64, threads=1, limit_s=9, pythons={"": Path(sys.executable)})
    missing = measuring.measure(tiny, peers.PeerEntry(name="none", system="none"), "dense", folder, repeat=0)
    assert missing == {"error": "ModuleNotFoundError: No module named 'bench.loader.systems.none'"}


def test_an_environment_pip_cannot_make_says_why(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venvs = bench("venvs")
    monkeypatch.setitem(venvs.VENVS, "broken", [["--no-index", "forebay-needs-no-such-thing"]])
    with pytest.raises(venvs.CannotInstall, match="No matching distribution found"):
        venvs.interpreter("broken", tmp_path)
    assert venvs.interpreter(venvs.OWN, tmp_path) == Path(sys.executable)


@pytest.mark.variation  # measures as the test above does, and writes
def test_the_runner_writes_its_documents(bench: Bench, tmp_path: Path) -> None:
    options = ["--rows", "2000", "--repeats", "1", "--kinds", "dense", "--systems", "gather,all cores", "--no-own"]
    folders = ["--data", tmp_path / "data", "--cache", tmp_path / "cache", "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.loader", *options, *folders], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "loader.json").read_text())
    assert [result["name"] for result in found["results"]] == ["limit: bare gather in memory", "Forebay, all cores"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["loader.json", "loader.md", "loader.png"]
