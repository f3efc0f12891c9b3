"""Seconds that a step stands still for a checkpoint: first, second and later ones, by driver and strategy.

    PYTHONPATH=platform python -m bench.device.commits
    PYTHONPATH=platform python -m bench.device.commits --drivers local --strategies ddp,fsdp2 --mb 512 --rounds 12

One worker for each GPU, or `--workers` on the CPU. Parameters and both moments of Adam have `--mb` in all; a checkpoint
each five steps. `ddp`: rank 0 has the whole state. `fsdp2`: each rank has its part. Two minutes with the defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch

import forebay as fb
from bench.machine import machine_and_code
from bench.turns import say, text_table, words_of

_EVERY = 5
_LAYERS = 4
_ROWS = 4
"""Rows of a worker's step. Nothing of them is learned."""


def train(answer: str, width: int, worker: fb.Worker) -> None:
    """Steps of Adam. Rank 0 writes how long each commit took."""
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(_LAYERS)]
    model, optimizer = worker.setup(torch.nn.Sequential(*layers), partial(torch.optim.Adam, lr=1e-5))
    inputs, seconds = torch.ones(2, width, device=worker.device), []
    for _ in worker.loader():
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item()  # a GPU has done the step
        began = time.perf_counter()
        worker.commit(loss=shown)
        seconds.append(time.perf_counter() - began)
        if worker.world.is_first:
            Path(answer).write_text(json.dumps(seconds))


def commits(driver: str, strategy: str, workers: int, width: int, rounds: int) -> list[float]:
    """Seconds of each commit with a checkpoint, but for the last one, which waits for storage."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        answer = f"{folder}/seconds.json"
        num_rows = _ROWS * workers * _EVERY * (rounds + 1)
        pq.write_table(pa.table({"x": np.zeros(num_rows, "f4")}), f"{folder}/rows.parquet")
        rows = fb.Data(
            plan=fb.build_plan(fb.scan(f"{folder}/rows.parquet")),
            transform=fb.Transform(x=fb.Dense(["x"])),
            global_batch=_ROWS * workers,
        )
        job = fb.Job(
            train=partial(train, answer, width),
            data=rows,
            workers=workers,
            strategy=strategy,
            checkpoint_every=_EVERY,
            max_failures=0,
            storage=f"{folder}/runs",
            storage_every_s=3600.0,
            cache=None,
            name="commits",
        )
        fb.run(job, driver)
        seconds: list[float] = json.loads(Path(answer).read_text())
    return seconds[_EVERY - 1 :: _EVERY][:-1]


def table(lines: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of a table of all ways. The first row is its head."""
    head = ["driver", "strategy", "workers", "first", "second", "later, median", "most"]
    rows = []
    for line in lines:
        first, second, *later = line["seconds"]
        figures = [first, second, statistics.median(later), max(later)]
        rows.append([line["driver"], line["strategy"], str(line["workers"]), *(f"{each:.3f}" for each in figures)])
    return [head, *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drivers", type=words_of, default=["local", "ray"], help="by commas")
    parser.add_argument("--strategies", type=words_of, default=["ddp", "fsdp2"], help="by commas")
    parser.add_argument("--workers", type=int, default=2, help="without GPUs")
    parser.add_argument("--mb", type=float, default=512, help="bytes of a state, in millions")
    parser.add_argument("--rounds", type=int, default=8, help="checkpoints, at least 3")
    parser.add_argument("--commit", help="of this code, where the repository has no history")
    given = parser.parse_args()
    workers = torch.cuda.device_count() or given.workers
    width = max(8, int((given.mb * 1e6 / 12 / _LAYERS) ** 0.5) // 8 * 8)
    say(**machine_and_code(given.commit), bench="commits", state_bytes=12 * _LAYERS * width**2)
    lines = []
    if "ray" in given.drivers:  # else it would join a cluster that is here
        ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
    for driver in given.drivers:
        for strategy in given.strategies:
            seconds = commits(driver, strategy, workers, width, max(3, given.rounds))
            rounded = [round(each, 4) for each in seconds]
            lines.append({"driver": driver, "strategy": strategy, "workers": workers, "seconds": rounded})
            say(**lines[-1])
    print(text_table(table(lines)))


if __name__ == "__main__":
    main()
