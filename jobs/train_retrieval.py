"""Train two towers for retrieval of a user's next visits.

Evaluated by recall@k with an index of FAISS.

forebay run jobs/train_retrieval.py
forebay run jobs/train_retrieval.py data=s3://lake/visits users=5000000 items=800000 workers=8

Data are visits: Parquet with the integer columns `user` and `item`, from 0 on. Without them a made-up log is written.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import forebay as fb
from forebay.errors import InvalidOption, MissingPackage

TASTES = 40
"""Groups of items in the made-up log. A user visits items of two of them."""
INDEXES = ("faiss", "exact")


def job(
    data: str | None = None,
    users: int = 20_000,
    items: int = 4_000,
    workers: int | None = None,
    gpus: float | None = None,
    epochs: int = 2,
    global_batch: int = 1024,
    lr: float = 2e-3,
    table_lr: float = 0.1,
    dim: int = 32,
    temperature: float = 0.1,
    k: int = 50,
    index: str = "faiss",
    held_out: float = 0.1,
    seed: int = 0,
    rows: int = 400_000,
    cache: str = "~/.cache/forebay",
    quota_gib: float = 50.0,
    storage: str = "runs",
    name: str | None = None,
    checkpoint_every: int = 100,
) -> fb.Job:
    """Retrieval by two towers with negatives from the batch.

    Args:
        data: Parquet folder, file or glob of visits. Without it a log of `rows` visits is written to data/ once.
        users: Number of users: ids are 0 to `users - 1`.
        items: Number of items.
        temperature: Divisor of the cosine of a user and an item.
        k: Number of items that recall@k searches for each user.
        index: "faiss" needs the package faiss-cpu. "exact" multiplies all vectors.
        held_out: Share of the row groups that is only evaluated on.
        workers: Number of workers. Default: one for each GPU of this machine, and 2 on CPUs.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    if index not in INDEXES:
        raise InvalidOption(f"index={index!r} is unknown. Choose one of {', '.join(map(repr, INDEXES))}.")
    if index == "faiss" and importlib.util.find_spec("faiss") is None:
        raise MissingPackage(
            "index='faiss' needs the package faiss-cpu, which is not installed. Run: pip install 'forebay[retrieval]', "
            "or set index=exact."
        )
    folder = data or str(write_visits(Path("data") / f"visits-{rows}-{users}-{items}", rows, users, items))
    training, evaluation = fb.scan(folder).split(held_out, seed=seed)
    transform = fb.Transform(user=fb.Label("user", dtype="int64"), item=fb.Label("item", dtype="int64"))
    plan = fb.build_plan(training, seed=seed)
    options = {"users": users, "items": items, "dim": dim, "temperature": temperature}
    return fb.Job(
        train=partial(train, options=options, lr=lr, table_lr=table_lr, k=k, index=index),
        data=fb.Data(plan=plan, transform=transform, global_batch=global_batch),
        held_out=fb.Data(
            plan=fb.build_plan(evaluation, lanes=plan.lanes, shuffle=False), transform=transform, global_batch=4096
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


def train(worker: fb.Worker, options: dict[str, Any], lr: float, table_lr: float, k: int, index: str) -> None:
    towers = TwoTowers(**options)
    tables = fb.tables.RowWiseAdagrad(lr=table_lr)
    model, optimizer = worker.setup(towers, partial(torch.optim.Adam, lr=lr), tables=tables)
    worker.evaluate_with(partial(recall, worker, towers, k, index))
    for batch in worker.loader():
        loss = worker.backward(batch, lambda part: in_batch_loss(*model(part["user"], part["item"]), part["item"]))
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss)


def in_batch_loss(users: Tensor, items: Tensor, ids: Tensor) -> Tensor:
    """In-batch softmax loss of users [n, dim] and items.

    Cross entropy of each user's own item among the batch's items [n, dim], whose ids are `ids` [n]. Another row with
    the same item does not count as a negative. A frequent item is a negative more often, so the logarithm of its
    frequency in the batch is subtracted (Yi et al. 2019, "Sampling-bias-corrected neural modeling").
    """
    same = ids.unsqueeze(0) == ids.unsqueeze(1)
    scores = users @ items.T - same.sum(1).float().log()
    own = torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    return cross_entropy(scores.masked_fill(same & ~own, float("-inf")), torch.arange(len(ids), device=ids.device))


class TwoTowers(nn.Module):
    """Unit vectors of users and items.

    Users' vectors are divided by the temperature.
    """

    def __init__(self, users: int, items: int, dim: int, temperature: float) -> None:
        super().__init__()
        self.users, self.items = fb.Table(rows=users, dim=dim), fb.Table(rows=items, dim=dim)
        self.user_layer, self.item_layer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.temperature = temperature

    def forward(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        user_rows, item_rows = fb.tables.look_up(
            fb.tables.Lookup(self.users, users), fb.tables.Lookup(self.items, items)
        )
        return unit(self.user_layer(user_rows)) / self.temperature, unit(self.item_layer(item_rows))

    def user_vectors(self, ids: Tensor) -> Tensor:
        return unit(self.user_layer(self.users(ids)))

    def item_vectors(self, ids: Tensor) -> Tensor:
        return unit(self.item_layer(self.items(ids)))


def unit(vectors: Tensor) -> Tensor:
    """Return `vectors` [n, dim] with a length of 1."""
    return normalize(vectors, dim=1)


@torch.no_grad()
def recall(worker: fb.Worker, towers: TwoTowers, k: int, index: str) -> dict[str, float]:
    """Recall@`k` on the held-out visits.

    The share of visits whose item is among the `k` best of its user. All ranks call it together.
    """
    batches = worker.held_out()
    assert batches is not None, "the job has held-out data"
    # Each rank searches for its own users, among all items.
    search = searcher(towers.item_vectors(torch.arange(towers.items.rows, device=worker.device)).cpu(), index)
    counts = np.zeros(2)
    for batch in batches:
        vectors = towers.user_vectors(batch["user"])  # Also for a dummy row: all ranks call a table equally often.
        if batch.weight > 0:
            found = search(vectors.cpu(), k)
            counts += (found == batch["item"].cpu().unsqueeze(1)).sum().item(), len(vectors)
    hits, visits = worker.all_reduce(counts)
    return {f"recall@{k}": float(hits / visits)}


def searcher(items: Tensor, index: str) -> Any:
    """Return a search for the best items.

    A function of (vectors [n, dim], k) that returns item ids [n, k].
    """
    if index == "exact":
        return lambda vectors, k: (vectors @ items.T).topk(k).indices
    import faiss  # noqa: PLC0415 - an extra

    flat = faiss.IndexFlatIP(items.shape[1])
    flat.add(items.numpy())
    return lambda vectors, k: torch.from_numpy(flat.search(vectors.numpy(), k)[1])


def write_visits(folder: Path, rows: int, users: int, items: int, seed: int = 0) -> Path:
    """Write a log of visits, once.

    A user has two tastes, and prefers the frequent items of each.
    """
    if (folder / "visits.parquet").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tastes = rng.integers(TASTES, size=(users, 2))
    user = rng.integers(users, size=rows)
    taste = tastes[user, rng.integers(2, size=rows)]
    position = (items // TASTES * rng.random(rows) ** 2).astype(np.int64)
    table = pa.table({"user": user, "item": position * TASTES + taste})
    draft = folder / "visits.draft"
    pq.write_table(table, draft, row_group_size=max(rows // 40, 1))
    draft.rename(folder / "visits.parquet")
    return folder
