"""The demo of `jobs/train_ctr.py` with slow steps, on elastic or fixed workers.

Rank 0 writes a line for each global batch: attempt, epoch, position, digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import train_ctr
from torch import Tensor, nn

import forebay as fb


def job(
    data: str, record: str, step_s: float = 0.1, epochs: int = 1, workers: int = 2, checkpoint_every: int = 10
) -> fb.Job:
    """Small click-through-rate model."""
    made = train_ctr.job(
        data=data, workers=workers, epochs=epochs, global_batch=256, buckets=1 << 10, dim=8,
        checkpoint_every=checkpoint_every,
    )  # fmt: skip
    features = train_ctr.split_features(fb.scan(data), "clicked", None)
    return replace(made, train=partial(train, features=features, record=record, step_s=step_s), storage_every_s=0.5)


def train(worker: fb.Worker, features: dict[str, list[str]], record: str, step_s: float) -> None:
    sizes = {name: len(columns) for name, columns in features.items()}
    model = WrittenTowers(sizes, Path(record) / f"{worker.world.rank}.jsonl", step_s)
    optimizer = partial(torch.optim.Adam, lr=5e-3)
    fb.fit(worker, model, optimizer, nn.BCEWithLogitsLoss(), fb.evaluate_auc)


class WrittenTowers(train_ctr.TwoTower):
    """Model that writes down each batch that it trains on."""

    def __init__(self, sizes: dict[str, int], record: Path, step_s: float) -> None:
        super().__init__(sizes, 1 << 10, 8)
        self.record, self.step_s = record, step_s

    def forward(self, batch: fb.Batch) -> Tensor:
        if self.training:
            digest = hashlib.sha256(batch["user_dense"].numpy().tobytes() + batch["item_ids"].numpy().tobytes())
            line = {"epoch": batch.epoch, "position": batch.position, "digest": digest.hexdigest(), "time": time.time()}
            line |= {"restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0")), "host": os.uname().nodename}
            with self.record.open("a") as file:
                file.write(json.dumps(line) + "\n")
            time.sleep(self.step_s)
        return super().forward(batch)
