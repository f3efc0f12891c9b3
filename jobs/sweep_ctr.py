"""Sweep the click model of train_ctr.py.

Its learning rate, its embeddings and its batch.

forebay run jobs/sweep_ctr.py trials=8 deadline=10m
forebay run jobs/sweep_ctr.py trials=16 deadline=1h30m data=s3://lake/clicks label=clicked workers=8
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Literal

from ray import tune
from train_ctr import job as train_ctr

import forebay as fb


@wraps(train_ctr)
def elastic_ctr(**parameters: object) -> fb.Job:
    """Job of train_ctr.py with 1 to `workers` workers.

    The sweep decides how many.
    """
    job = train_ctr(**parameters)
    return replace(job, workers=1, elastic=fb.Elastic(min_workers=1, max_workers=job.workers))


def sweep(
    trials: int = 8,
    deadline: fb.Seconds | None = None,
    policy: Literal["top", "uniform", "softmax"] = "top",
    workers: int = 2,
    gpus: float | None = None,
    at_once: int | None = None,
    driver: str = "ray",
    epochs: int = 6,
    data: str | None = None,
    label: str = "clicked",
    rows: int = 100_000,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
    seed: int = 0,
) -> fb.Sweep:
    """Search the click model's parameters for the best AUC.

    Args:
        deadline: Time until all trials end: 90s, 10m, 1h30m. Workers move to the best trials meanwhile. Without a
            deadline, every trial trains all its epochs.
        policy: Order in which trials get the free workers: best trial first, evenly, or by forecast.
        workers: Largest number of workers per trial.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
        at_once: Largest number of trials that train at a time. Default: as many as the cluster has room for.
        data: Parquet folder, file or glob. Without it, a click log of `rows` rows is written to data/ once.
    """
    return fb.Sweep(
        elastic_ctr,
        {
            "lr": tune.loguniform(3e-4, 3e-2),
            "dim": [4, 8, 16, 32],
            "global_batch": [512, 1024, 2048],
        },
        metric="auc",
        mode="max",
        num_trials=trials,
        fixed={
            "workers": workers,
            "gpus": gpus,
            "epochs": epochs,
            "data": data,
            "label": label,
            "rows": rows,
            "cache": cache,
            "buckets": 1 << 14,
            "checkpoint_every": 20,
        },
        driver=driver,
        scheduler=None if deadline is None else fb.DeadlineScheduler(deadline, policy=policy),
        deadline_s=deadline,
        max_concurrent=at_once,
        name=name,
        storage=storage,
        seed=seed,
    )
