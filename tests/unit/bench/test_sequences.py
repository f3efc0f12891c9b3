"""The sequence bench at a tiny scale: its data, the systems without extras, its arithmetic and its document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

Bench = Callable[[str], ModuleType]
COLUMNS = 2
HELD_BYTES = 32 << 20
HOLDS = f"print(flush=True); input(); held = bytearray(b'1') * {HELD_BYTES}; print(flush=True); open(0).read()"
"""Program that takes memory at the first line that it gets, and ends with its input."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from bench.sequences import data

    return data.make(tmp_path_factory.mktemp("data"), 20_000, COLUMNS)


def _setting(bench: Bench, made: tuple[Path, Path], work: Path, variant: str = "") -> Any:
    return bench("sequences.setting").SequenceSetting(
        data=made[0], flat=made[1], windows=20_000, columns=COLUMNS, work=work, variant=variant
    )


def test_both_files_hold_the_same_values(made: tuple[Path, Path]) -> None:
    table = pq.read_table(made[0])
    values = np.fromfile(made[1], np.float32).reshape(-1, COLUMNS)
    np.testing.assert_array_equal(values, np.stack([table[f"c{place}"] for place in range(COLUMNS)], axis=1))
    assert table["series"].to_numpy().tolist() == [0] * 10_431 + [1] * 10_431


@pytest.mark.parametrize("variant", ["raw", ""])
def test_forebay_and_the_limit_bring_the_same_batches(
    bench: Bench, made: tuple[Path, Path], tmp_path: Path, variant: str
) -> None:
    setting = _setting(bench, made, tmp_path, variant)
    systems = [bench(f"sequences.systems.{name}") for name in ("forebay_windows", "gather")]
    for system in systems:
        system.prepare(setting)
    for loader, limit in islice(zip(*(system.batches(setting) for system in systems), strict=False), 3):
        assert loader["past"].shape[1:] == (336, COLUMNS)
        for name in ("past", "future"):
            np.testing.assert_array_equal(loader[name], limit[name])


def test_mapped_windows_are_those_of_the_series(bench: Bench, made: tuple[Path, Path], tmp_path: Path) -> None:
    memory_map = bench("sequences.systems.memory_map")
    memory_map.prepare(_setting(bench, made, tmp_path))
    values = np.fromfile(made[1], np.float32).reshape(-1, COLUMNS)
    scaled = (values - values.mean(axis=0)) / values.std(axis=0)
    for variant in ("", "scaled"):
        windows = memory_map.MappedWindows(_setting(bench, made, tmp_path, variant))
        assert len(windows) == 20_000
        for number, start in ((0, 0), (9_999, 9_999), (10_000, 10_431)):
            past, future = windows[number]
            np.testing.assert_allclose(past, scaled[start : start + 336], atol=1e-4)
            np.testing.assert_allclose(future, scaled[start + 336 : start + 432], atol=1e-4)


def test_memory_and_time_are_those_of_the_process(bench: Bench) -> None:
    """Of one of its own: this one may give memory of earlier tests back between two measurements."""
    memory = bench("sequences.memory")
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = memory.private_bytes(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert memory.private_bytes(process.pid) - before > 0.9 * HELD_BYTES
        assert memory.used_bytes([process.pid]) > 0.9 * HELD_BYTES
        assert memory.cpu_seconds([process.pid]) > 0
        assert memory.family()[0] == os.getpid()
        assert process.pid in memory.family()
        process.stdin.close()


def _result(name: str, series_set: str, repeat: int, rate: float, used_mb: float = 100) -> dict[str, Any]:
    return {
        "name": name,
        "set": series_set,
        "repeat": repeat,
        "prepare_s": 3.0,
        "first_batch_s": 0.2,
        "windows_per_s": rate,
        "window_bytes": 12_096,
        "cpu_us_per_window": 4.5,
        "used_bytes": used_mb * 1e6,
        "worker_bytes": 2e6,
        "workers": 4,
        "facts": {"version": "1", "shuffled": "yes", "note": "n"},
    }


def test_report_holds_ratios_of_one_round_against_targets(bench: Bench, tmp_path: Path) -> None:
    peers, report = bench("sequences.peers"), bench("sequences.report")
    rates, small, large = peers.RATES.name, peers.SMALL.name, peers.LARGE.name
    results = [
        *(_result(peers.FOREBAY, rates, repeat, 1e5 * 2**repeat) for repeat in range(3)),
        *(_result(peers.MAPPED, rates, repeat, 1e4 * 2**repeat) for repeat in range(2)),
        *(_result(peers.GATHER, rates, repeat, 2e5 * 2**repeat) for repeat in range(3)),
        _result(peers.FOREBAY, small, 0, 1e5),
        _result(peers.FOREBAY, large, 0, 1e5, used_mb=150),
        {"name": "GluonTS", "set": large, "repeat": 0, "error": "did not end"},
        {"name": "neuralforecast", "set": "", "repeat": 0, "error": "no pip"},
    ]
    machine = {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5}
    options = {"repeats": 3, "seconds": 5.0, "memory_gb": 10.0, "limit": 300.0}
    document = {"machine": machine, "options": options, "took_s": 60, "results": results, "figures": []}
    text = report.report(document)
    assert "| windows/s against a memory map of scaled values + DataLoader | >= 5 | 10.00 x | met | 1.00 x |" in text
    assert "| windows/s against a bare gather of the same bytes | >= 0.8 | 0.50 x | **missed** | 1.00 x |" in text
    assert "| the same, bits as stored | >= 8 | not measured |  |  |" in text
    assert "<= 1.1 | 1.50 x | **missed** |  |" in text
    assert f"- GluonTS, {large}: did not end" in text
    assert "- neuralforecast: no pip" in text
    bench("sequences.plot").plot(document, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
