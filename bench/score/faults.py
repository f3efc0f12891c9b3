"""Rows lost, doubled or changed under random kills of workers, driver and nodes."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.score.cluster import KilledCluster
from forebay.score.answer_folder import AnswerFolder
from forebay.score.request import ScoreRequest
from forebay.score.scoring import score_rows

SHARD_ROWS, MAX_TOKENS = 500, 6
_TURN_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """Outcome of a run with kills, beside an undisturbed one."""

    rows: int
    kills: dict[str, int]
    starts: int
    lost: int
    doubled: int
    is_equal: bool
    rerun_rows: int
    undisturbed_s: float
    killed_s: float


def run_with_kills(model: Path, data: Path, folder: Path, kills: int) -> FaultCounts:
    """Score `data` undisturbed in this process, and then on a cluster of which something is killed `kills` times."""
    began = time.monotonic()
    score_rows(_request(model, data, folder / "undisturbed", workers=1))
    undisturbed_s = time.monotonic() - began
    words = [f"{name}={value}" for name, value in _options(model, data, folder / "killed", workers=2).items()]
    cluster, began = KilledCluster(seed=0), time.monotonic()
    try:
        starts = _score_under_kills(cluster, words, folder / "killed", kills)
        killed_s = time.monotonic() - began
        rerun: dict[str, Any] = json.loads(cluster.score(words).communicate()[0])
    finally:
        cluster.end()
    expected, found = _rows_of(folder / "undisturbed"), _rows_of(folder / "killed")
    numbers = [row["row"] for row in found]
    return FaultCounts(
        rows=len(expected),
        kills=dict(cluster.counts),
        starts=starts,
        lost=len({row["row"] for row in expected} - set(numbers)),
        doubled=len(numbers) - len(set(numbers)),
        is_equal=_digest(expected) == _digest(found),
        rerun_rows=int(rerun["rows_scored"]),
        undisturbed_s=undisturbed_s,
        killed_s=killed_s,
    )


def _score_under_kills(cluster: KilledCluster, words: list[str], folder: Path, kills: int) -> int:
    """Kill something each time that another shard is there, and start the driver again. Returns the starts."""
    starts, there, driver = 1, 0, cluster.score(words)
    while True:
        if driver.poll() is not None:
            if driver.returncode == 0:
                return starts
            driver.wait()
            starts, driver = starts + 1, cluster.score(words)
        present = len(list(folder.glob("shard-*.parquet")))
        if present > there and sum(cluster.counts.values()) < kills:
            there = present
            kind = cluster.kill(driver)
            print(f"{present} shards, {sum(cluster.counts.values())} kills, now: {kind}", flush=True)
        time.sleep(_TURN_S)


def _options(model: Path, data: Path, folder: Path, *, workers: int) -> dict[str, Any]:
    asked = {"shard_rows": SHARD_ROWS, "max_tokens": MAX_TOKENS, "temperature": 0.8, "seed": 3, "workers": workers}
    return {"model": str(model), "data": str(data), "to": str(folder), **asked}


def _request(model: Path, data: Path, folder: Path, *, workers: int) -> ScoreRequest:
    return ScoreRequest(**_options(model, data, folder, workers=workers))


def _rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for table in AnswerFolder(uri=str(folder), plan="").read() for row in table.to_pylist()]


def _digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
