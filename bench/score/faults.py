"""Rows lost, doubled or changed under random kills of workers, driver and nodes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.score.cluster import KINDS, NODE_CPUS, KilledCluster

SHARD_ROWS, MAX_TOKENS = 250, 6
_TURN_S, _STATE = 0.05, "kills.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledJob:
    """Program that scores data into `folder`, and is started again until it ends well. `actors` are its workers.

    `kinds` are killed, in a cluster whose nodes have `node_cpus` CPUs each.
    """

    name: str
    command: Sequence[str]
    actors: str
    folder: Path
    kinds: Sequence[str] = KINDS
    node_cpus: int = NODE_CPUS


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """Outcome of a job that was killed: `read` rows were there at the end, and `scored` rows were generated for them.

    `scored` is None for a job that does not count them.
    """

    name: str
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    starts: int = 0
    seconds: float = 0.0
    is_done: bool = False
    read: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    scored: int | None = None


def forebay_job(model: Path, data: Path, folder: Path, **more: Any) -> KilledJob:
    """`forebay llm score` with 2 workers and answers that are drawn, and `more` options."""
    asked = {"shard_rows": SHARD_ROWS, "max_tokens": MAX_TOKENS, "temperature": 0.8, "seed": 3, "keep": "id,"}
    options = {"model": model, "data": data, "to": folder, "workers": 2, **asked, **more}
    words = [f"{name}={value}" for name, value in options.items()]
    command = (sys.executable, "-m", "forebay", "llm", "score", *words, "--json")
    return KilledJob(name="forebay", command=command, actors="ScoreActor", folder=folder)


def ray_data_job(model: Path, data: Path, folder: Path, *, is_checkpointed: bool) -> KilledJob:
    """A loop over `map_batches` of Ray Data, started again as it is, or with Ray Data's checkpoints."""
    command = [sys.executable, "-m", "bench.score.ray_data", str(model), str(data), str(folder)]
    name = "ray.data, checkpoints" if is_checkpointed else "ray.data"
    more = ["--checkpoint"] * is_checkpointed
    return KilledJob(name=name, command=(*command, *more), actors="MapWorker", folder=folder)


def run_with_kills(job: KilledJob, expected: dict[int, str], kills: int, seconds: float) -> FaultCounts:
    """Kill something each time that more is scored, `kills` times, and start the job again where it was killed.

    Ends after about `seconds`. Another call goes on where this one ended. `expected` are the texts by `id`, empty if
    they are not compared.
    """
    before = _before(job)
    if not before.is_done:
        seed, began = sum(before.kills.values()), time.monotonic()
        cluster = KilledCluster(seed, job.actors, kinds=job.kinds, node_cpus=job.node_cpus)
        try:
            starts, is_done = _score_under_kills(cluster, job, kills - sum(before.kills.values()), seconds)
        finally:
            cluster.end()
        counts = {kind: before.kills[kind] + cluster.counts[kind] for kind in KINDS}
        elapsed = before.seconds + time.monotonic() - began
        before = replace(before, kills=counts, starts=before.starts + starts, seconds=elapsed, is_done=is_done)
        _state_file(job).write_text(json.dumps({name: getattr(before, name) for name in FaultCounts.__slots__}))
    return _compared(before, job, expected) if before.is_done else before


def texts_of(folder: Path) -> list[tuple[int, str]]:
    """`id` and text of each row of the answers that are there."""
    found: list[tuple[int, str]] = []
    for path in sorted(folder.glob("**/*.parquet")):
        table = pq.read_table(path, columns=["id", "text"])
        found += zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
    return found


def _before(job: KilledJob) -> FaultCounts:
    """Counts of earlier calls. A file of counts without answers is none."""
    path = _state_file(job)
    return FaultCounts(**json.loads(path.read_text())) if path.exists() else FaultCounts(name=job.name)


def _score_under_kills(cluster: KilledCluster, job: KilledJob, kills: int, seconds: float) -> tuple[int, bool]:
    """Starts of the driver, and whether the last one ended well."""
    until, starts, driver = time.monotonic() + seconds, 1, cluster.start(job.command)
    there = _progress(job.folder)
    while time.monotonic() < until:
        if driver.poll() is not None:
            if driver.returncode == 0:
                return starts, True
            driver.wait()
            starts, driver = starts + 1, cluster.start(job.command)
        present, done = _progress(job.folder), sum(cluster.counts.values())
        if present != there and done < kills:
            there, kind = present, cluster.kill(driver)
            print(f"{job.name}: {present[0]} files, {done + 1} of {kills} kills, now: {kind}", flush=True)
        time.sleep(_TURN_S)
    driver.kill()
    driver.wait()
    return starts, False


def _compared(found: FaultCounts, job: KilledJob, expected: dict[int, str]) -> FaultCounts:
    rows = texts_of(job.folder)
    ids, counts = np.unique([number for number, _ in rows], return_counts=True)
    log = _scored_log(job.folder)
    return replace(
        found,
        read=len(rows),
        lost=len(expected) - len(ids),
        doubled=int((counts - 1).sum()),
        changed=sum(expected[number] != text for number, text in rows),
        scored=sum(map(int, log.read_text().split())) if log.exists() else None,
    )


def _progress(folder: Path) -> tuple[int, int]:
    """Files of answers, and bytes of the file in which a job counts its rows."""
    log = _scored_log(folder)
    return len(list(folder.glob("**/*.parquet"))), log.stat().st_size if log.exists() else 0


def _state_file(job: KilledJob) -> Path:
    return job.folder.with_name(f"{job.folder.name}-{_STATE}")


def _scored_log(folder: Path) -> Path:
    """File to which a job appends the rows of each batch that it has generated."""
    return folder.with_name(f"{folder.name}-scored.txt")


def describe(counts: FaultCounts) -> dict[str, Any]:
    """Counts as plain data."""
    return {name: getattr(counts, name) for name in FaultCounts.__slots__}
