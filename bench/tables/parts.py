"""Time of a checkpoint in parts of a table of 10 million rows, on 2 ranks under Ray, over a copy of a rank's bytes.

python -m bench.tables.parts --json parts.json [--quick]

In turns, both ranks make a checkpoint with `worker.commit`, and copy their own rows and state into a file in memory,
with checksums. Linux.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from torch import nn

import forebay as fb
from bench.own import narrow
from bench.own.parts import GLOBAL_BATCH, MOST_OF_A_COPY, RANKS, WARM_UP, RawCopy, timed
from bench.own.verdict import Figure, main, measure, spread

ROWS, DIM = 10_000_000, 16
LOOKUPS = 1024


class LargeTable(nn.Module):
    """Regression on rows of one table."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = fb.Table(rows, DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.table(ids))
        return found


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Time of a checkpoint over a copy of a rank's bytes."""
    rounds, rows = (2, 10_000) if quick else (9, ROWS)
    narrow.write(folder / "data", row_groups=WARM_UP + rounds, rows=GLOBAL_BATCH)
    found = measure(__spec__.name, "run", folder=folder, rows=rows)
    checkpoint, copy = (found[name][WARM_UP:] for name in ("checkpoint_s", "copy_s"))
    measured = statistics.median(mine / other for mine, other in zip(checkpoint, copy, strict=True))
    return [
        Figure(
            figure="checkpoint of a table, over a copy of a rank's bytes",
            target=f"<= {MOST_OF_A_COPY:g}",
            measured=measured,
            unit="x",
            passed=measured <= MOST_OF_A_COPY,
            note=f"{found['share_bytes'] / 1e6:.0f} MB; checkpoint {spread(checkpoint)} s, copy {spread(copy)} s",
        )
    ]


def run(folder: str, rows: int) -> dict[str, Any]:
    """Train under Ray, and return what rank 0 has measured."""
    ray.init(address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    answer = Path(folder) / "table-parts.json"
    job = fb.Job(
        train=partial(train, str(answer), rows),
        resources=fb.Resources(gpus=0),
        data=fb.Data(
            plan=fb.build_plan(fb.scan(f"{folder}/data")), transform=narrow.transform(), global_batch=GLOBAL_BATCH
        ),
        workers=RANKS,
        checkpoint_every=1,
        max_failures=0,
        storage=f"{folder}/runs",
        storage_every_s=3600.0,
        cache=None,
        name="table-parts",
    )
    fb.run(job, "ray")
    ray.shutdown()
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def train(answer: str, rows: int, worker: fb.Worker) -> None:
    """Train some rows in each step, and measure in turns."""
    built = LargeTable(rows)
    tables = fb.tables.Tables(fb.tables.RowWiseAdagrad(lr=0.1), placement="rows")
    model, optimizer = worker.setup(built, partial(torch.optim.SGD, lr=0.01), tables=tables)
    assert built.table.shared is not None, "set by setup()"
    copy = RawCopy(list(built.table.shared.owned.tensors.values()))
    times: dict[str, list[float]] = {"checkpoint_s": [], "copy_s": []}
    for batch in worker.loader():
        model(torch.randint(rows, (LOOKUPS,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch.ends_epoch:  # That checkpoint goes to storage too.
            if worker.world.is_first:
                Path(answer).write_text(json.dumps({**times, "share_bytes": copy.num_bytes}))
            worker.commit(loss=0.0)
            return
        with timed(times["checkpoint_s"]):
            worker.commit(loss=0.0)
        with timed(times["copy_s"]):
            copy()


if __name__ == "__main__":
    children: dict[str, Callable[..., Any]] = {"run": run}
    main(figures, children)
