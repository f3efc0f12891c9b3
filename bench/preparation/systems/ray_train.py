"""Ray Data feeding Ray Train 2.60 directly: fitted preprocessors, `get_dataset_shard`, `iter_torch_batches`.

`StandardScaler` and `OrdinalEncoder` are fitted on the dataset and transform it, as Ray's guide on preprocessing
describes. The trainer gets the dataset, and each epoch iterates over the worker's shard. Variant "materialized" calls
`materialize` before the fit, which the guide advises for an expensive transform: blocks stay in the object store until
the job ends. Rows are not shuffled, which costs least.

https://docs.ray.io/en/latest/train/user-guides/data-loading-preprocessing.html
https://docs.ray.io/en/latest/data/preprocessors.html
https://docs.ray.io/en/latest/data/api/doc/ray.data.DataIterator.iter_torch_batches.html
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
import torch
from ray import train
from ray.data.preprocessors import OrdinalEncoder, StandardScaler
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from bench.preparation.pipeline import CATEGORY, NUMBERS, clicks_with_users
from bench.preparation.setting import PreparationFacts, PreparationSetting
from bench.preparation.work import EpochLog, click_model

_PREFETCH = 4


def facts(setting: PreparationSetting) -> PreparationFacts:
    """Facts of this variant."""
    is_materialized = setting.variant == "materialized"
    return PreparationFacts(
        version=f"Ray Data and Ray Train {ray.__version__}",
        keeps="blocks in the object store until the job ends" if is_materialized else "nothing",
        shuffled="no",
        resumes="at the start of an epoch",
        note="transformed once per run" if is_materialized else "read and transformed for each fit and each epoch",
    )


def run_job(setting: PreparationSetting) -> dict[str, Any]:
    """Prepare and train. Returns how long it took until training could begin."""
    began = time.time()
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = clicks_with_users(setting)
    if setting.variant == "materialized":
        rows = rows.materialize()
    scaler, encoder = StandardScaler(list(NUMBERS)).fit(rows), OrdinalEncoder([CATEGORY]).fit(rows)
    rows = encoder.transform(scaler.transform(rows))
    if setting.variant == "materialized":
        rows = rows.materialize()
    ready = time.time()
    num_ids = len(encoder.stats_[f"unique_values({CATEGORY})"])
    TorchTrainer(
        train_worker,
        train_loop_config=asdict(setting) | {"num_ids": num_ids},
        scaling_config=train.ScalingConfig(num_workers=1),
        datasets={"train": rows},
        run_config=train.RunConfig(name="run", storage_path=f"{setting.folder}/train"),
    ).fit()
    return {"prepare_s": ready - began, "kept_bytes": 0}


def train_worker(config: dict[str, Any]) -> None:
    """Training loop as a user of Ray Train writes it, which also notes the rows that arrived."""
    num_ids = config.pop("num_ids")
    setting = PreparationSetting(**config)
    network = prepare_model(click_model(len(NUMBERS), num_ids))
    optimizer, criterion = torch.optim.Adam(network.parameters(), lr=1e-3), nn.BCEWithLogitsLoss()
    shard, log = train.get_dataset_shard("train"), EpochLog(setting.log, setting.rows)
    for _ in range(setting.epochs):
        for batch in log.timed(shard.iter_torch_batches(batch_size=setting.batch, prefetch_batches=_PREFETCH)):
            numbers = torch.stack([batch[name] for name in NUMBERS], dim=1).float()  # the scaler gives float64
            loss = criterion(network(numbers, batch[CATEGORY].long()), batch["label"].float())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.add(np.array(batch["row"]))
        log.end_epoch()
        train.report({"loss": float(loss.detach())})
