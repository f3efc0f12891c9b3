"""Cost of augments: nanoseconds of a random number of a row, and the trainer's wait behind steps of some length.

python -m bench.augment [--quick]

Numbers are compared with `numpy.random.Generator` in CPU seconds, in turn, and the least of several rounds
counts. The trainer sleeps for each step, as one does whose GPU computes, over cached rows of 100 floats. Its augment
adds noise to each float and sets one of ten to 0.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import forebay as fb
from forebay.data.transform.row_random import RowRandom

ROWS, WIDTH, BATCH = 8192, 100, 2048
Draw = Callable[[Any], Any]

KINDS: dict[str, tuple[Draw, Draw]] = {
    "uniform, float32": (
        lambda rng: rng.uniform(size=WIDTH),
        lambda numpy: numpy.random((ROWS, WIDTH), dtype=np.float32),
    ),
    "uniform, float64": (
        lambda rng: rng.uniform(size=WIDTH, dtype=np.float64),
        lambda numpy: numpy.random((ROWS, WIDTH)),
    ),
    "normal, float32": (
        lambda rng: rng.normal(size=WIDTH),
        lambda numpy: numpy.standard_normal((ROWS, WIDTH), dtype=np.float32),
    ),
    "integers": (
        lambda rng: rng.integers(1000, size=WIDTH),
        lambda numpy: numpy.integers(1000, size=(ROWS, WIDTH)),
    ),
    "bernoulli": (
        lambda rng: rng.bernoulli(0.1, WIDTH),
        lambda numpy: numpy.random((ROWS, WIDTH), dtype=np.float32) < 0.1,
    ),
    "permutation of 100": (
        lambda rng: rng.permutation(WIDTH),
        lambda numpy: numpy.permuted(np.broadcast_to(np.arange(WIDTH), (ROWS, WIDTH)), axis=1),
    ),
    "uniform, one for each row": (
        lambda rng: rng.uniform(),
        lambda numpy: numpy.random(ROWS, dtype=np.float32),
    ),
    "generators, one for each row": (
        lambda rng: sum(1 for _ in rng.generators()),
        lambda _: [np.random.Generator(np.random.Philox(key=[1, row])) for row in range(ROWS)],
    ),
}


def cpu_s(call: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def numbers(rounds: int) -> dict[str, tuple[float, float]]:
    """Least nanoseconds of CPU time of a number by kind: ours, and NumPy's."""
    rows, numpy = np.arange(ROWS, dtype=np.uint64), np.random.default_rng(1)
    found = {}
    for kind, (ours, theirs) in KINDS.items():
        count = ROWS * (1 if "each row" in kind else WIDTH)
        own = partial(_drawn, ours, rows)
        pairs = [(cpu_s(own), cpu_s(partial(theirs, numpy))) for _ in range(rounds)]
        found[kind] = min(each for each, _ in pairs) / count * 1e9, min(each for _, each in pairs) / count * 1e9
    return found


def _drawn(draw: Draw, rows: NDArray[np.uint64]) -> Any:
    return draw(RowRandom(1, rows))


def add_noise(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    """Augment of the measured loader."""
    batch["x"] += rng.normal(0.0, 0.1, WIDTH)
    batch["x"] *= ~rng.bernoulli(0.1, WIDTH)
    return batch


def waits(folder: Path, steps_ms: tuple[float, ...], num_batches: int, rounds: int) -> list[tuple[float, float, float]]:
    """(step, milliseconds of wait per step without and with the augment), and the augment's time as the last entry."""
    columns = {f"x{column}": np.ones(num_batches * BATCH, np.float32) for column in range(WIDTH)}
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=1 << 14)
    plan = fb.build_plan(fb.scan(str(folder)), lanes=16)
    transform, cache = fb.Transform(x=fb.Dense([*columns])), fb.DiskCache(folder / "cache", quota_bytes=8 << 30)
    found, augment_s = [], 0.0
    for step_ms in steps_ms:
        spent = [0.0, 0.0]
        for _ in range(rounds):
            for place, augment in enumerate((None, add_noise)):
                with fb.Loader(plan, transform, cache, global_batch=BATCH, augment=augment) as loader:
                    for number, _ in enumerate(loader):
                        if number == 0:
                            loader.counters.merge({"wait_s": -loader.counters["wait_s"]})  # threads start
                        time.sleep(step_ms / 1e3)
                    spent[place] += loader.counters["wait_s"]
                    augment_s = loader.counters["augment_s"] / num_batches if augment else augment_s
        found.append((step_ms, *(each / rounds / (num_batches - 1) * 1e3 for each in spent)))
    return [*found, (0.0, 0.0, augment_s * 1e3)]


def main() -> None:
    """Measure and print tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast it is")
    is_quick = options.parse_args().quick
    print("| numbers | Forebay, ns | NumPy, ns |\n|---|---|---|")
    for kind, (ours, theirs) in numbers(1 if is_quick else 9).items():
        print(f"| {kind} | {ours:.1f} | {theirs:.1f} |")
    with tempfile.TemporaryDirectory() as folder:
        rows = waits(Path(folder), (2.0, 10.0) if is_quick else (1.0, 5.0, 10.0, 20.0), 8 if is_quick else 100, 3)
    print(f"\naugment: {rows[-1][2]:.2f} ms for {BATCH} rows\n\n| step, ms | wait without, ms | with |\n|---|---|---|")
    for step_ms, without, with_augment in rows[:-1]:
        print(f"| {step_ms:g} | {without:.3f} | {with_augment:.3f} |")


if __name__ == "__main__":
    main()
