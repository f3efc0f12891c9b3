"""Train a two-tower click model on Parquet.

Your own, or a click log that is made on first use.

forebay run jobs/train_ctr.py
forebay run jobs/train_ctr.py data=s3://lake/clicks label=clicked workers=8 epochs=3
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import forebay as fb
from forebay.errors import InvalidOption
from forebay.testing.data.click_log import write_click_log

WIDTH = 32
"""Width of the vector of a user or an item."""


def job(
    data: str | None = None,
    label: str = "clicked",
    workers: int | None = None,
    gpus: float | None = None,
    epochs: int = 3,
    global_batch: int = 8192,
    lr: float = 5e-3,
    buckets: int = 1 << 17,
    dim: int = 16,
    user: list[str] | None = None,
    held_out: float = 0.1,
    seed: int = 0,
    lanes: int | None = None,
    rows: int = 2_000_000,
    cache: str = "~/.cache/forebay",
    quota_gib: float = 50.0,
    storage: str = "runs",
    name: str | None = None,
    checkpoint_every: int = 100,
    strategy: str = "ddp",
    offload: str = "none",
    reduction: str = "mean",
) -> fb.Job:
    """Click-through-rate model.

    Args:
        data: Parquet folder, file or glob. Without it a click log of `rows` rows is written to data/ once.
        label: Column of 0 and 1.
        user: Columns of the user tower; the others go to the item tower. Default: the first half of each kind.
        held_out: Share of the row groups that is only evaluated on.
        buckets: Rows of the embedding table that all categorical columns share by hashing.
        dim: Width of an embedding.
        lanes: Largest number of workers that the run can ever have. Default: chosen from the data.
        strategy: "ddp", or "fsdp2", "zero1", "zero2" or "zero3" to hold a part of the tables or their moments on each
            worker.
        offload: "optimizer" keeps the moments in main memory, with "zero1" to "zero3".
        reduction: "exact" gives the same bits for every number of workers.
        workers: Number of workers. Default: one for each GPU of this machine, and 2 on CPUs.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    manifest = fb.scan(data or click_log(rows))
    features = split_features(manifest, label, user)
    transform = fb.Transform(
        **{name: fb.Dense(columns) for name, columns in features.items() if name.endswith("dense") and columns},
        **{
            name: fb.Categorical(columns, buckets=buckets)
            for name, columns in features.items()
            if name.endswith("ids") and columns
        },
        label=fb.Label(label),
    )
    training, evaluation = manifest.split(held_out, seed=seed)
    plan = fb.build_plan(training, seed=seed, lanes=lanes)
    return fb.Job(
        train=partial(train, features=features, buckets=buckets, dim=dim, lr=lr),
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
        strategy=strategy,
        offload=offload,
        reduction=reduction,
    )


def train(worker: fb.Worker, features: dict[str, list[str]], buckets: int, dim: int, lr: float) -> None:
    model = TwoTower({name: len(columns) for name, columns in features.items()}, buckets, dim)
    optimizer = partial(torch.optim.Adam, lr=lr, weight_decay=1e-5)
    fb.fit(worker, model, optimizer, nn.BCEWithLogitsLoss(), fb.evaluate_auc)


def click_log(rows: int) -> str:
    """Write the click log once, and print its best AUC."""
    log = write_click_log(Path("data") / f"clicks-{rows}", rows=rows, progress=say_progress)
    print(f"{log.rows:,} rows in {log.path}; no model can exceed an AUC of {log.best_auc:.4f} on them", flush=True)
    return str(log.path)


def say_progress(done: int, total: int) -> None:
    """Print the progress about ten times.

    Called after each of 120 row groups.
    """
    if done * 10 // total > (done - total // 120) * 10 // total:
        print(f"writing the click log: {done:,} of {total:,} rows", flush=True)


def split_features(manifest: fb.Manifest, label: str, user: list[str] | None) -> dict[str, list[str]]:
    """Choose the features: floats are dense, integers and strings categorical.

    Lists and other types are left out.
    """
    kinds = {field.name: kind_of(field.type) for field in manifest.fields if field.name != label}
    names = {kind: [name for name, found in kinds.items() if found == kind] for kind in ("dense", "ids")}
    if user is None:
        user = [name for columns in names.values() for name in columns[: -(-len(columns) // 2)]]
    if unknown := sorted(set(user) - kinds.keys()):
        raise InvalidOption(f"user={user}: {unknown} are not feature columns. Choose from {sorted(kinds)}.")
    features = {f"user_{kind}": [name for name in columns if name in user] for kind, columns in names.items()}
    features |= {f"item_{kind}": [name for name in columns if name not in user] for kind, columns in names.items()}
    if not any(features["user_dense"] + features["user_ids"]) or not any(features["item_dense"] + features["item_ids"]):
        raise InvalidOption(
            f'Each tower needs a feature; found {features}. Name the user\'s columns: user=\'["a", "b"]\'.'
        )
    return features


def kind_of(type_name: str) -> str:
    if type_name.startswith(("float", "double", "halffloat", "decimal")):
        return "dense"
    return "ids" if type_name.startswith(("int", "uint", "string", "large_string", "bool", "dictionary")) else "other"


class ClickTower(nn.Module):
    """Layers that map one side's features to [rows, WIDTH].

    Features are dense ones and embedded ids.
    """

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class TwoTower(nn.Module):
    """Logit of a click.

    The dot product of a user's and an item's vector.

    Both towers see their side's dense features and ids, embedded by one table that all columns share.
    """

    def __init__(self, sizes: dict[str, int], buckets: int, dim: int) -> None:
        super().__init__()
        self.sizes = {name: size for name, size in sizes.items() if size}
        self.table = nn.Embedding(buckets, dim)
        nn.init.normal_(self.table.weight, std=0.01)
        self.user = ClickTower(sizes["user_dense"] + dim * sizes["user_ids"])
        self.item = ClickTower(sizes["item_dense"] + dim * sizes["item_ids"])
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: fb.Batch) -> Tensor:
        user, item = self.user(self.inputs(batch, "user")), self.item(self.inputs(batch, "item"))
        return (user * item).sum(dim=1) / WIDTH**0.5 + self.bias

    def inputs(self, batch: fb.Batch, side: str) -> Tensor:
        parts = [batch[f"{side}_dense"]] if f"{side}_dense" in self.sizes else []
        if f"{side}_ids" in self.sizes:
            parts.append(self.table(batch[f"{side}_ids"]).flatten(1))
        return torch.cat(parts, dim=1)
