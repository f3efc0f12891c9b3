"""Forebay: `fb.Sweep` over a plain job function. All trials of a node share its cached blocks.

Variants are drivers: "local" trains in the trial's own actor, "ray" makes each trial a nested run of Ray Train. With
"two transforms" every other trial has a transform of its own.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray import tune
from torch import nn

import forebay as fb
from bench.sweep.setting import SweepFacts, SweepSetting
from bench.sweep.work import COLUMNS, LEARNING_RATES, WorkTotals, arrays, model

_QUOTA_BYTES = 20 << 30


def facts(setting: SweepSetting) -> SweepFacts:
    """Facts of this variant."""
    return SweepFacts(
        version=f"forebay, driver {setting.variant!r}",
        shares="transformed blocks, on the node's disk; with the next sweep as well",
        shuffled="row groups over the dataset, rows in windows of 65,536 per lane",
        resumes="a trial continues from its own checkpoint",
        note="blocks are checksummed; each trial's state is saved at every epoch",
    )


def sweep(setting: SweepSetting) -> dict[str, Any]:
    """Run the sweep. Returns its times, among them when trials could begin."""
    ray.init(
        address="local",
        num_cpus=setting.concurrent + setting.threads,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    began = time.time()
    # Scan once, so that all trials train on the same files and none of them reads footers.
    options = f"endpoint_override={setting.endpoint}&scheme=http&region=us-east-1&anonymous=true"
    manifest = fb.scan(f"s3://bucket/{setting.prefix}?{options}", columns=[*COLUMNS, "label"])
    manifest.save(_manifest_path(setting))
    space: dict[str, Any] = {"lr": tune.loguniform(*LEARNING_RATES)}
    if setting.variant == "two transforms":
        space["num_quantiles"] = {"grid_search": [256, 1000]}
    found = fb.run_sweep(
        fb.Sweep(
            job,
            space,
            "loss",
            "min",
            num_trials=setting.trials,
            fixed={"told": json.dumps(asdict(setting))},
            driver="ray" if setting.variant == "ray" else "local",
            max_concurrent=setting.concurrent,
            name="sweep",
            storage=f"{setting.folder}/runs",
            seed=setting.seed,
        ),
        show=False,
    )
    return {"began": began, "ended": time.time(), "best": found.best_value}


def job(told: str, lr: float = 1e-3, num_quantiles: int = 1000) -> fb.Job:
    """Job of a trial. `told` is the bench's setting as JSON. Two values of `num_quantiles` make two sets of blocks."""
    setting = SweepSetting(**json.loads(told))
    manifest = fb.Manifest.load(_manifest_path(setting))
    fn = partial(transform, log=setting.transforms_log, num_quantiles=num_quantiles)
    return fb.Job(
        train=partial(train, setting=setting, lr=lr),
        resources=fb.Resources(gpus=0),
        data=fb.Data(
            plan=fb.build_plan(manifest, seed=setting.seed),
            transform=fb.Transform(fn=fn, version="1"),
            global_batch=setting.batch,
        ),
        epochs=setting.epochs,
        seed=setting.seed,
        cache=fb.CacheSpec(path=f"{setting.folder}/cache", quota_bytes=_QUOTA_BYTES, core_share=1.0),
        checkpoint_every=1 << 20,
    )


def transform(batch: pa.RecordBatch, log: str, num_quantiles: int) -> dict[str, np.ndarray]:
    """Transform one row group."""
    rows = batch.select(COLUMNS).to_tensor(row_major=True).to_numpy()
    return arrays(rows, batch["label"].to_numpy(), log, num_quantiles)


def train(worker: fb.Worker, setting: SweepSetting, lr: float) -> None:
    """Training loop as in `fb.fit`, which also notes the rows that arrived."""
    torch.set_num_threads(1)
    network, optimizer = worker.setup(model(), partial(torch.optim.Adam, lr=lr))
    criterion, account = nn.BCEWithLogitsLoss(), WorkTotals(f"{lr:.12g}")
    numbers: list[np.ndarray] = []
    for batch in worker.loader():
        loss = worker.backward(batch, lambda part: criterion(network(part["x"]), part["label"]))
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(batch["number"].numpy().copy())
        if batch.ends_epoch:
            account.take(numbers, setting.rows)
            numbers.clear()
        worker.commit(loss=loss)
    account.write(setting.trials_log, float(loss))


def _manifest_path(setting: SweepSetting) -> str:
    return f"{setting.folder}/manifest.parquet"
