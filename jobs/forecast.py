"""Forecast hourly series with NLinear or DLinear.

Models of Zeng et al., AAAI 2023. The series are ETTh1 and ETTh2, electricity transformers by hour.

forebay run --driver local jobs/forecast.py csv=../shared/data/ETTh1.csv horizon=96 model=nlinear
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

import forebay as fb
from forebay.errors import InvalidOption

MONTH = 30 * 24
TRAIN, VALIDATION, TEST = 12 * MONTH, 16 * MONTH, 20 * MONTH
"""Ends of the published split, in hours."""
ROW_GROUP_ROWS = 1024
TREND_STEPS = 25


def job(
    csv: str = "../shared/data/ETTh1.csv",
    horizon: int = 96,
    past: int = 336,
    model: Literal["nlinear", "dlinear"] = "nlinear",
    part: Literal["validation", "test"] = "test",
    workers: int = 1,
    gpus: float | None = None,
    epochs: int = 10,
    global_batch: int = 32,
    lr: float = 5e-3,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
    strategy: str = "ddp",
) -> fb.Job:
    """Predict the next hours of all seven columns.

    `mse` is of scaled values, as published.

    Args:
        csv: File of the ETT dataset. It is converted to Parquet next to the runs.
        horizon: Hours to predict. Published are 96, 192, 336 and 720.
        past: Hours that the model looks back on.
        part: Part of the split that `mse` is measured on.
        lr: Learning rate of the first epoch. Each epoch halves it.
        strategy: "ddp", or "fsdp2", "zero1", "zero2" or "zero3" to split the model over workers.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    columns, source = to_parquet(Path(csv), Path(storage) / "data")
    blocks = fb.CacheSpec(path=cache)
    series = fb.Sequences(
        fb.scan(source),
        time="date",
        past=fb.History(columns, steps=past),
        future=fb.Horizon(columns, steps=horizon),
        scale="standard",
        cache=blocks,
    )
    training, validation, test = series.split(steps=(TRAIN, VALIDATION))
    held_out = {"validation": validation, "test": test}[part]
    return fb.Job(
        train=partial(train, model=model, past=past, horizon=horizon, lr=lr),
        data=fb.Data(plan=fb.build_plan(training, seed=seed), transform=training.transform, global_batch=global_batch),
        held_out=fb.Data(plan=fb.build_plan(held_out, shuffle=False), transform=held_out.transform, global_batch=256),
        epochs=epochs,
        workers=workers,
        resources=fb.Resources(gpus=gpus),
        seed=seed,
        cache=blocks,
        storage=storage,
        name=name,
        strategy=strategy,
    )


def train(worker: fb.Worker, model: str, past: int, horizon: int, lr: float) -> None:
    network = {"nlinear": NLinear, "dlinear": DLinear}[model](past, horizon)
    net, optimizer = worker.setup(network, partial(torch.optim.Adam, lr=lr))
    worker.evaluate_with(partial(evaluate, worker, net))
    for batch in worker.loader():
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 ** max(batch.epoch - 1, 0)
        loss = worker.backward(batch, lambda each: functional.mse_loss(net(each["past"]), each["future"]))
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss)


@torch.no_grad()
def evaluate(worker: fb.Worker, model: nn.Module) -> dict[str, float]:
    """Mean squared error of held-out windows, equal on ranks.

    Each window counts once.
    """
    sums = np.zeros(2)
    for batch in worker.held_out() or ():
        error = (model(batch["past"]) - batch["future"]).square()
        if batch.weight > 0:
            sums += error.double().sum().item(), error.numel()
    total, count = worker.all_reduce(sums)
    return {"mse": float(total / count)}


def to_parquet(source: Path, folder: Path) -> tuple[list[str], str]:
    """Columns and path of the published split's hours.

    Written once per version of the source.
    """
    if not source.exists():
        raise InvalidOption(f"csv={str(source)!r} does not exist. Give the path of ETTh1.csv or ETTh2.csv.")
    table = pa.csv.read_csv(source).slice(0, TEST)
    columns = [name for name in table.column_names if name != "date"]
    target = folder / f"{source.stem}.parquet"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".unfinished")
        pq.write_table(table, unfinished, row_group_size=ROW_GROUP_ROWS)
        unfinished.rename(target)
    return columns, str(target)


class NLinear(nn.Module):
    """Linear layer over time, relative to the last value."""

    def __init__(self, past: int, horizon: int) -> None:
        super().__init__()
        self.layer = nn.Linear(past, horizon)

    def forward(self, values: Tensor) -> Tensor:
        last = values[:, -1:]
        forecast: Tensor = self.layer((values - last).transpose(1, 2)).transpose(1, 2) + last
        return forecast


class DLinear(nn.Module):
    """Two linear layers over time.

    One for the moving average, one for the rest.
    """

    def __init__(self, past: int, horizon: int) -> None:
        super().__init__()
        self.trend, self.rest = nn.Linear(past, horizon), nn.Linear(past, horizon)

    def forward(self, values: Tensor) -> Tensor:
        half = (TREND_STEPS - 1) // 2
        first, last = values[:, :1].repeat(1, half, 1), values[:, -1:].repeat(1, half, 1)
        padded = torch.cat([first, values, last], dim=1).transpose(1, 2)
        trend = functional.avg_pool1d(padded, TREND_STEPS, 1)
        forecast: Tensor = (self.trend(trend) + self.rest(values.transpose(1, 2) - trend)).transpose(1, 2)
        return forecast
