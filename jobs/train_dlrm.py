"""Train a DLRM on a click log.

Numbers go through a small network, categories through a table shared by all workers.

forebay run jobs/train_dlrm.py
forebay run jobs/train_dlrm.py data=s3://lake/criteo label=label workers=8 buckets=40000000

Criteo's click logs have the columns label, I1 to I13 (counts, some missing) and C1 to C26 (hashes as text), separated
by tabs and without names. Write them as Parquet with these names and types: `label` int8, I1 to I13 int32, C1 to C26
string. Columns whose name begins with C or c are categories, all other numbers are dense features.
Source of the model: Naumov et al. 2019, "Deep Learning Recommendation Model", arXiv 1906.00091.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import forebay as fb
from forebay.errors import InvalidOption
from forebay.testing.data.click_log import write_click_log


def job(
    data: str | None = None,
    label: str = "clicked",
    workers: int | None = None,
    gpus: float | None = None,
    epochs: int = 2,
    global_batch: int = 8192,
    lr: float = 2e-3,
    table_lr: float = 0.05,
    buckets: int = 1 << 19,
    dim: int = 16,
    placement: str = "auto",
    wire: str = "float32",
    held_out: float = 0.1,
    seed: int = 0,
    lanes: int | None = None,
    rows: int = 1_000_000,
    cache: str = "~/.cache/forebay",
    quota_gib: float = 50.0,
    storage: str = "runs",
    name: str | None = None,
    checkpoint_every: int = 100,
) -> fb.Job:
    """DLRM for click-through rates.

    Args:
        data: Parquet folder, file or glob. Without it a click log of `rows` rows is written to data/ once.
        label: Column of 0 and 1.
        lr: Learning rate of the layers, for Adam.
        table_lr: Learning rate of the rows of the table, for row-wise Adagrad.
        buckets: Rows of the table that all categorical columns share by hashing.
        dim: Width of a row, and of the vector of the dense features.
        placement: "rows", "replicate", "table" or "auto": see docs/embedding-tables.md.
        wire: "float32", "bfloat16" or "float16": form of rows and gradients between workers.
        held_out: Share of the row groups that is only evaluated on.
        lanes: Largest number of workers that the run can ever have. Default: chosen from the data.
        workers: Number of workers. Default: one for each GPU of this machine, and 2 on CPUs.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    manifest = fb.scan(data or click_log(rows))
    names = [field.name for field in manifest.fields if field.name != label]
    categories = [each for each in names if each[0] in "cC"]
    dense = [each for each in names if each not in categories]
    if not categories or not dense:
        raise InvalidOption(
            f"A DLRM needs categories and numbers; found {categories} and {dense}. Names of categories begin with C."
        )
    transform = fb.Transform(
        dense=fb.Dense(dense), ids=fb.Categorical(categories, buckets=buckets), label=fb.Label(label)
    )
    training, evaluation = manifest.split(held_out, seed=seed)
    plan = fb.build_plan(training, seed=seed, lanes=lanes)
    tables = fb.tables.Tables(fb.tables.RowWiseAdagrad(lr=table_lr), placement=placement, wire=wire)
    build = partial(DLRM, len(dense), len(categories), buckets, dim)
    return fb.Job(
        train=partial(train, build=build, lr=lr, tables=tables),
        data=fb.Data(plan=plan, transform=transform, global_batch=global_batch),
        held_out=fb.Data(
            plan=fb.build_plan(evaluation, lanes=plan.lanes, shuffle=False),
            transform=transform,
            global_batch=4 * global_batch,
        ),
        epochs=epochs,
        workers=fb.workers_here(gpus) if workers is None else workers,
        resources=fb.Resources(gpus=gpus),
        seed=seed,
        cache=fb.CacheSpec(path=cache, quota_bytes=int(quota_gib * 2**30)),
        storage=storage,
        name=name,
        checkpoint_every=checkpoint_every,
    )


def train(worker: fb.Worker, build: partial[DLRM], lr: float, tables: fb.tables.Tables) -> None:
    optimizer = partial(torch.optim.Adam, lr=lr)
    fb.fit(worker, build(), optimizer, nn.BCEWithLogitsLoss(), fb.evaluate_auc, tables=tables)


def click_log(rows: int) -> str:
    """Write the click log once, and print its best AUC."""
    log = write_click_log(Path("data") / f"clicks-{rows}", rows=rows)
    print(f"{log.rows:,} rows in {log.path}; no model can exceed an AUC of {log.best_auc:.4f} on them", flush=True)
    return str(log.path)


class DLRM(nn.Module):
    """Logit of a click.

    From the dense features and the dot products of all pairs of vectors. The vectors are the rows of the categories,
    and one that the lower layers make of the dense features.
    """

    def __init__(self, num_dense: int, num_categories: int, buckets: int, dim: int) -> None:
        super().__init__()
        self.table = fb.Table(rows=buckets, dim=dim, scale=0.01)
        self.lower = nn.Sequential(nn.Linear(num_dense, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        count = num_categories + 1
        self.pairs = torch.triu_indices(count, count, offset=1)
        self.upper = nn.Sequential(nn.Linear(dim + self.pairs.shape[1], 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, batch: fb.Batch) -> Tensor:
        numbers = batch["dense"]
        dense = self.lower(numbers.sign() * numbers.abs().log1p())  # Counts have long tails.
        vectors = torch.cat([dense.unsqueeze(1), self.table(batch["ids"])], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return self.upper(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], dim=1))[:, 0]
