"""Measure one system in this process. Started by the bench, in the system's environment.

python -m bench.mixture.child REQUEST.json ANSWER.json
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.mixture.setting import WEIGHTS, MixedBatch, MixingSystem, MixtureSetting
from bench.processes import answer_and_exit

STATE_AT = 40
"""Batches of an epoch after which a state is taken: well within it, and no round number of anything."""
FOLLOWING = 20
"""Batches after a state that a resumed process must repeat."""


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Open a system and read an epoch and the start of a second one, or some batches after a state."""
    paths = {name: Path(request["setting"][name]) for name in ("data", "work", "converted")}
    setting = MixtureSetting(**request["setting"] | paths)
    system: MixingSystem = importlib.import_module(f"bench.mixture.systems.{request['system']}").open_system(setting)
    system.prepare()
    if request["state"] is not None:
        return {"digests": [_digest(batch) for batch in _first(system.batches(request["state"]), FOLLOWING)]}
    return _whole(system, setting, request["limit_s"])


def _whole(system: MixingSystem, setting: MixtureSetting, limit_s: float) -> dict[str, Any]:
    digests: list[list[str]] = [[], []]
    states, sources, rows, stop = [], [], 0, 0.0
    start = first = time.perf_counter()
    for batch in system.batches(None):
        now = time.perf_counter()
        if batch.epoch == 0:
            # The clock of the rate begins with the second batch: processes take seconds to start.
            first, stop = (now, now) if not sources else (first, now)
            rows += len(batch.arrays["x"]) if sources else 0
            sources.append(np.asarray(batch.arrays["source"]).ravel())
        digests[batch.epoch].append(_digest(batch))
        if len(digests[batch.epoch]) == STATE_AT:
            states.append(json.loads(json.dumps(batch.state())))  # A copy: some go on changing theirs.
        if len(digests[1]) == STATE_AT + FOLLOWING:
            break
        if now - start > limit_s:
            raise TimeoutError(f"{rows} rows in {limit_s:.0f} s")
    distance, counted = _distance(np.concatenate(sources)[: setting.rows])
    return {
        "version": system.version,
        "first_batch_s": first - start,
        "rows_per_s": rows / (stop - first),
        "distance": distance,
        "counted_rows": counted,
        "epoch_batches": len(digests[0]),
        "states": states,
        "following": [each[STATE_AT : STATE_AT + FOLLOWING] for each in digests],
    }


def _distance(sources: np.ndarray) -> tuple[float, int]:
    """Largest distance of a dataset's count from its share, over all prefixes, and the number of rows."""
    rows = np.arange(1, len(sources) + 1)
    shares = WEIGHTS.values()
    return max(
        float(np.abs(np.cumsum(sources == source) - rows * share).max()) for source, share in enumerate(shares)
    ), len(sources)


def _digest(batch: MixedBatch) -> str:
    """Digest of the rows of a batch, in any order."""
    source, number = (np.asarray(batch.arrays[name], dtype=np.int64).ravel() for name in ("source", "id"))
    return hashlib.sha256(np.sort((source << 40) + number).tobytes()).hexdigest()[:16]


def _first(batches: Iterator[MixedBatch], count: int) -> Iterator[MixedBatch]:
    for batch, _ in zip(batches, range(count), strict=False):
        yield batch


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    # Some systems' threads never end.
    answer_and_exit(Path(sys.argv[2]), lambda: measure(request))


if __name__ == "__main__":
    main()
