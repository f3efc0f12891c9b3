"""Forebay: `fb.preparation.from_ray_data` once, then `fb.run` on the prepared dataset, with the driver "ray".

Scales are applied in the model's buffers, ids by `fb.Categorical` with the fitted vocabulary.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import forebay as fb
from bench.preparation.pipeline import CATEGORY, NUMBERS, clicks_with_users
from bench.preparation.setting import PreparationFacts, PreparationSetting
from bench.preparation.work import EpochLog, click_model

_QUOTA_BYTES = 20 << 30
_ROW_GROUP_ROWS = 32_768


def facts(setting: PreparationSetting) -> PreparationFacts:  # noqa: ARG001 - of every system
    """Facts of this system."""
    return PreparationFacts(
        version="forebay, driver 'ray'",
        keeps="the prepared dataset, and the blocks of the node's cache",
        shuffled="row groups over the dataset, rows in windows per lane; another order in each epoch",
        resumes="at the batch after the last checkpoint, on any number of workers",
        note="sorted by key; files and blocks are checksummed",
    )


def run_job(setting: PreparationSetting) -> dict[str, Any]:
    """Prepare and train. Returns when preparation began and ended."""
    began = time.time()
    prepared = fb.preparation.from_ray_data(
        partial(clicks_with_users, setting),
        version="1",
        inputs=[setting.uri],
        into=f"{setting.folder}/prepared",
        key="row",
        row_group_rows=_ROW_GROUP_ROWS,
        fit=[fb.preparation.Moments(NUMBERS), fb.Vocabulary(CATEGORY)],
    )
    ready = time.time()
    categories = fb.Categorical([CATEGORY], vocabulary=prepared.vocabularies)
    transform = fb.Transform(
        number=fb.Dense(["row"], dtype="int64"), x=fb.Dense(NUMBERS), ids=categories, label=fb.Label("label")
    )
    scales = [(prepared.statistics[name].mean, prepared.statistics[name].std) for name in NUMBERS]
    plan = fb.build_plan(prepared.manifest, seed=setting.seed)
    fb.run(
        fb.Job(
            train=partial(train, setting=setting, scales=scales, num_ids=categories.num_ids[0]),
            resources=fb.Resources(gpus=0),
            data=fb.Data(plan=plan, transform=transform, global_batch=setting.batch),
            epochs=setting.epochs,
            cache=fb.CacheSpec(path=setting.cache, quota_bytes=_QUOTA_BYTES, core_share=1.0),
            storage=f"{setting.folder}/runs",
            checkpoint_every=1 << 20,
        ),
        "ray",
    )
    return {"prepare_s": ready - began, "kept_bytes": prepared.num_bytes}


def train(worker: fb.Worker, setting: PreparationSetting, scales: list[tuple[float, float]], num_ids: int) -> None:
    """Training loop as in `fb.fit`, which also notes the rows that arrived."""
    mean, std = torch.tensor(scales, dtype=torch.float32).T
    network, optimizer = worker.setup(click_model(len(NUMBERS), num_ids), partial(torch.optim.Adam, lr=1e-3))
    criterion, log = nn.BCEWithLogitsLoss(), EpochLog(setting.log, setting.rows)

    def loss_of(part: fb.Batch) -> Tensor:
        found: Tensor = criterion(network((part["x"] - mean) / std, part["ids"][:, 0]), part["label"])
        return found

    for batch in log.timed(worker.loader()):
        loss = worker.backward(batch, loss_of)
        optimizer.step()
        optimizer.zero_grad()
        log.add(np.array(batch["number"][:, 0]))
        if batch.ends_epoch:
            log.end_epoch()
        worker.commit(loss=loss)
