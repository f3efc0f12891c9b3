"""Real run of the deadline bench: one sweep under `DeadlineScheduler` and one under ASHA, on a Ray of 4 CPUs.

Trials are the click model of jobs/train_ctr.py. The bench must run on machines with fewer cores than workers. So a step
computes little and sleeps a fixed time per row, in place of a busy accelerator.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler
from torch import Tensor, nn

import forebay as fb
from bench.processes import REPOSITORY
from forebay.sweep.deadline.scheduler import DeadlineScheduler
from forebay.sweep.record.record import Record
from forebay.sweep.report.plots import workers_picture
from forebay.sweep.run_sweep import run_sweep
from forebay.sweep.sweep import Sweep
from forebay.testing.data.click_log import write_click_log
from forebay.training.worker.evaluation import evaluate_auc

sys.path.insert(0, str(REPOSITORY / "jobs"))
from train_ctr import TwoTower, split_features
from train_ctr import job as train_ctr

SLOTS, TRIALS, EPOCHS, DEADLINE_S = 4, 12, 80, 240.0
ROWS, EPOCH_S = 40_000, 6.0
RATES = (1e-6, 1e-4)
"""Range of learning rates. They are so low that a good trial still learns at the deadline: otherwise nothing could be
won.
"""
NAMES = {"deadline": "DeadlineScheduler", "asha": "ASHA"}


class Paced(TwoTower):
    """The click model at the pace of an accelerator: one worker takes `EPOCH_S` for an epoch."""

    def forward(self, batch: fb.Batch) -> Tensor:
        if self.training:
            time.sleep(len(batch["label"]) * EPOCH_S / (0.9 * ROWS))
        return super().forward(batch)


def train(worker: fb.Worker, features: dict[str, list[str]], dim: int, lr: float) -> None:
    model = Paced({name: len(columns) for name, columns in features.items()}, 1 << 14, dim)
    fb.fit(worker, model, partial(torch.optim.Adam, lr=lr), nn.BCEWithLogitsLoss(), evaluate_auc)


def job(data: str, cache: str, lr: float = 1e-3, dim: int = 8, elastic: bool = True) -> fb.Job:
    """Job of a trial: 1 to `SLOTS` workers, or always one."""
    made = train_ctr(data=data, workers=1, epochs=EPOCHS, global_batch=1200, buckets=1 << 14, cache=cache, quota_gib=1)
    features = split_features(fb.scan(data), "clicked", None)
    return replace(
        made,
        train=partial(train, features=features, dim=dim, lr=lr),
        elastic=fb.Elastic(min_workers=1, max_workers=SLOTS) if elastic else None,
        checkpoint_every=5,
    )


def run_both(out: Path) -> dict[str, Any]:
    """Run both sweeps, one after the other, and plot their workers. Returns their results."""
    folder = Path(tempfile.mkdtemp(prefix="dl-"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *sys.path])
    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        data = str(write_click_log(folder / "clicks", rows=ROWS).path)
        records = {name: _run(name, folder, data) for name in NAMES}
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    for name, record in records.items():
        workers_picture(record).save(str(out / f"deadline_{name}.svg"))
    return {"text": _text(records), "records": {name: record.to_json() for name, record in records.items()}}


def _run(name: str, folder: Path, data: str) -> Record:
    schedulers = {
        "deadline": lambda: DeadlineScheduler(DEADLINE_S),
        "asha": lambda: AsyncHyperBandScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
    }
    sweep = Sweep(
        job,
        {"lr": tune.loguniform(*RATES), "dim": [4, 8, 16]},
        "auc",
        "max",
        num_trials=TRIALS,
        fixed={"data": data, "cache": str(folder / "cache"), "elastic": name == "deadline"},
        scheduler=schedulers[name](),
        deadline_s=DEADLINE_S,
        name=name,
        storage=str(folder / "runs"),
        seed=3,
    )
    return run_sweep(sweep, show=False).record


def _text(records: dict[str, Record]) -> str:
    lines = [
        f"## Real training: {SLOTS} slots, {TRIALS} trials, {DEADLINE_S:.0f} seconds",
        "",
        "The click model of `jobs/train_ctr.py` on a synthetic click log, with the same configs for both schedulers.",
        f"Ray Train workers run on {SLOTS} CPUs of one Ray.",
        f"ASHA has {SLOTS} trials of one worker at a time.",
        "Each step waits a fixed time per row, in place of an accelerator: the machine has fewer cores than workers.",
        f"Rates are drawn from {RATES[0]:g} to {RATES[1]:g}, so low that a good trial still improves at the deadline.",
        "One run each.",
        "",
        "| | best AUC | at, s | epochs of that trial | most workers of that trial | trials started | ended after, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        best = record.best
        assert best is not None
        point = best.best(record.mode)
        assert point is not None
        started = sum(trial.epochs > 0 for trial in record.trials.values())
        most = max(each.workers for each in best.points)
        lines.append(
            f"| {NAMES[name]} | {point.value:.4f} | {point.at_s:.0f} | {best.epochs} | {most} | {started} | "
            f"{record.elapsed_s:.0f} |"
        )
    pictures = [f"![workers by trial, {NAMES[name]}](deadline_{name}.svg)" for name in records]
    return "\n".join([*lines, "", *pictures])


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path())
    print(run_both(options.parse_args().out)["text"])
