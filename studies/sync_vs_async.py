"""Effect of stale updates on embeddings: parameter servers with asynchronous workers, beside a run of Forebay.

python studies/sync_vs_async.py                   # the sweep of docs/explanation/sync-vs-async.md, less than a minute
forebay run studies/sync_vs_async.py rate=0.03    # the synchronous half alone
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import forebay as fb

USERS, ITEMS, DIM, TASTES = 300, 100, 16, 4
ROWS, BATCH = 20_480, 256
TABLES = ("users", "items")


class AsyncClicks(nn.Module):
    """Logit of a click: the dot product of a user's and an item's row."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        start = torch.Generator().manual_seed(seed)
        self.users = nn.Embedding.from_pretrained(0.1 * torch.randn(USERS, DIM, generator=start), freeze=False)
        self.items = nn.Embedding.from_pretrained(0.1 * torch.randn(ITEMS, DIM, generator=start), freeze=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return (self.users(batch["user"]) * self.items(batch["item"])).sum(dim=1)

    @torch.no_grad()
    def longest_row(self) -> float:
        return max(table.weight.norm(dim=1).max().item() for table in (self.users, self.items))


# The synchronous half: every update is the gradient of the model it is applied to.


def job(
    rate: float = 0.03,
    updates: int = 800,
    seed: int = 0,
    workers: int = 1,
    data: str = "data/stale-clicks",
    history: str | None = None,
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Click model of two embedding tables, trained for as many updates as the asynchronous workers make.

    Args:
        rate: Learning rate of Adam.
        history: JSON file for the length of the longest row after each update.
    """
    plan = fb.build_plan(fb.scan(write_clicks(Path(data))), seed=seed)
    transform = fb.Transform(
        user=fb.Label("user", dtype="int64"), item=fb.Label("item", dtype="int64"), label=fb.Label("clicked")
    )
    return fb.Job(
        train=partial(train, rate=rate, history=history),
        resources=fb.Resources(gpus=0),
        data=fb.Data(plan=plan, transform=transform, global_batch=BATCH),
        epochs=max(updates * BATCH // ROWS, 1),
        workers=workers,
        seed=seed,
        storage=storage,
        name=name,
        checkpoint_every=1000,
    )


def train(worker: fb.Worker, rate: float, history: str | None) -> None:
    clicks = AsyncClicks(worker.seed)
    model, optimizer = worker.setup(clicks, partial(torch.optim.Adam, lr=rate))
    norms = []
    for batch in worker.loader():
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"]) * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(clicks.longest_row())
        worker.commit(loss=loss)
    if history is not None and worker.world.is_first:
        state = {name: getattr(clicks, name).weight.tolist() for name in TABLES}
        Path(history).write_text(json.dumps({"norms": norms, "tables": state}))


# The asynchronous half: each table is in an actor that applies every gradient as soon as it arrives.


class Server:
    """Parameter server: one table, and one Adam that applies the gradients of all workers one after another."""

    def begin(self, name: str, seed: int, rate: float) -> None:
        self._weight = getattr(AsyncClicks(seed), name).weight
        self._adam = torch.optim.Adam([self._weight], lr=rate)
        self._version, self._staleness, self._norms = 0, 0, []

    def pull(self) -> tuple[int, np.ndarray]:
        return self._version, self._weight.detach().numpy().copy()

    def push(self, version: int, gradients: np.ndarray) -> None:
        for gradient in gradients:
            self._staleness += self._version - version
            self._weight.grad = torch.from_numpy(gradient.copy())
            self._adam.step()
            self._version += 1
            self._norms.append(self._weight.detach().norm(dim=1).max().item())

    def history(self) -> tuple[list[float], float, list[list[float]]]:
        """Longest row after each update, mean staleness of the updates, and the table."""
        return self._norms, self._staleness / max(self._version, 1), self._weight.tolist()


class AsyncTrainer:
    """Worker that fetches the tables, computes the gradients of `fetch_every` batches, and then sends them."""

    def __init__(self, data: str) -> None:
        torch.set_num_threads(1)
        self._rows = read_clicks(data)
        self._model = AsyncClicks(seed=0)

    def train(self, servers: Mapping[str, Any], updates: int, fetch_every: int, seed: tuple[int, int]) -> None:
        dice = np.random.default_rng(seed)
        for done in range(0, updates, fetch_every):
            versions = self._pull(servers)
            batches = [dice.integers(ROWS, size=BATCH) for _ in range(min(fetch_every, updates - done))]
            found = [self._gradients(torch.from_numpy(places)) for places in batches]
            for name, server in servers.items():
                server.push.remote(versions[name], np.stack([gradients[name] for gradients in found]))

    def _pull(self, servers: Mapping[str, Any]) -> dict[str, int]:
        pulled = ray.get([server.pull.remote() for server in servers.values()])
        with torch.no_grad():
            for name, (_, table) in zip(servers, pulled, strict=True):
                getattr(self._model, name).weight.copy_(torch.from_numpy(table.copy()))
        return {name: version for name, (version, _) in zip(servers, pulled, strict=True)}

    def _gradients(self, places: Tensor) -> dict[str, np.ndarray]:
        batch = {name: column[places] for name, column in self._rows.items()}
        self._model.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(self._model(batch), batch["label"]).backward()
        return {name: getattr(self._model, name).weight.grad.numpy() for name in TABLES}


# Both, side by side.


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOutcome:
    """One training. `norms` are the longest rows after each update. `loss` is the final model's on all rows."""

    rate: float
    fetch_every: int  # 0 for the synchronous half
    staleness: float
    norms: Sequence[float]
    loss: float


def synchronous(folder: Path, rate: float, updates: int, seed: int) -> AsyncOutcome:
    history = folder / "history.json"
    data, runs = str(folder / "clicks"), str(folder / "runs")
    fb.run(job(rate=rate, updates=updates, seed=seed, data=data, history=str(history), storage=runs), driver="local")
    found = json.loads(history.read_text())
    return AsyncOutcome(
        rate=rate, fetch_every=0, staleness=0, norms=found["norms"], loss=loss_of(found["tables"], folder / "clicks")
    )


def asynchronous(
    servers: Mapping[str, Any], trainers: Sequence[Any], folder: Path, sweep: tuple[float, int, int, int]
) -> AsyncOutcome:
    rate, fetch_every, updates, seed = sweep
    ray.get([server.begin.remote(name, seed, rate) for name, server in servers.items()])
    share = updates // len(trainers)
    ray.get([each.train.remote(servers, share, fetch_every, (seed, rank)) for rank, each in enumerate(trainers)])
    found = dict(zip(servers, ray.get([server.history.remote() for server in servers.values()]), strict=True))
    norms = [max(pair) for pair in zip(*(norms for norms, _, _ in found.values()), strict=False)]
    tables = {name: table for name, (_, _, table) in found.items()}
    staleness = mean(each for _, each, _ in found.values())
    loss = loss_of(tables, folder / "clicks")
    return AsyncOutcome(rate=rate, fetch_every=fetch_every, staleness=staleness, norms=norms, loss=loss)


def sweep(folder: Path, options: argparse.Namespace) -> list[AsyncOutcome]:
    data = write_clicks(folder / "clicks")
    outcomes = [
        synchronous(folder, rate, options.updates, seed) for rate in options.rates for seed in range(options.seeds)
    ]
    ray.init(address="local", num_cpus=options.workers, include_dashboard=False, logging_level="ERROR")
    try:
        servers = {name: ray.remote(num_cpus=0)(Server).remote() for name in TABLES}
        trainers = [ray.remote(num_cpus=1)(AsyncTrainer).remote(data) for _ in range(options.workers)]
        for rate in options.rates:
            for fetch_every in options.fetch_every:
                for seed in range(options.seeds):
                    setting = (rate, fetch_every, options.updates, seed)
                    outcomes.append(asynchronous(servers, trainers, folder, setting))
    finally:
        ray.shutdown()
    return outcomes


def write_clicks(folder: Path) -> str:
    """Write clicks of users and items with four tastes each. A few of them are in most rows, as in any click log."""
    if not folder.exists():
        dice = np.random.default_rng(0)
        user, item = (
            dice.choice(count, ROWS, p=popularity / popularity.sum())
            for count, popularity in ((USERS, 1 / np.arange(1, USERS + 1) ** 0.8), (ITEMS, 1 / np.arange(1, ITEMS + 1)))
        )
        logits = (dice.normal(0, 0.8, (USERS, TASTES))[user] * dice.normal(0, 0.8, (ITEMS, TASTES))[item]).sum(axis=1)
        clicked = (dice.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(np.int8)
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"user": user, "item": item, "clicked": clicked}), folder / "a.parquet", row_group_size=2048
        )
    return str(folder)


def read_clicks(folder: str) -> dict[str, Tensor]:
    table = pq.read_table(folder)
    columns = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in ("user", "item")}
    return columns | {"label": torch.from_numpy(table["clicked"].to_numpy().astype(np.float32))}


def loss_of(tables: Mapping[str, list[list[float]]], data: Path) -> float:
    model, rows = AsyncClicks(seed=0), read_clicks(str(data))
    with torch.no_grad():
        for name, table in tables.items():
            getattr(model, name).weight.copy_(torch.tensor(table))
        return nn.functional.binary_cross_entropy_with_logits(model(rows), rows["label"]).item()


def table_of(outcomes: Sequence[AsyncOutcome]) -> str:
    lines = ["| rate | updates | staleness | longest row: peak | at the end | loss of the model |", "|" + "---|" * 6]
    for rate, fetch_every in dict.fromkeys((each.rate, each.fetch_every) for each in outcomes):
        group = [each for each in outcomes if (each.rate, each.fetch_every) == (rate, fetch_every)]
        how = f"asynchronous, fetched every {fetch_every}" if fetch_every else "synchronous"
        cells = [
            f"{rate:g}",
            how,
            f"{mean(each.staleness for each in group):.0f}",
            spread([max(each.norms) for each in group], ".1f"),
            spread([each.norms[-1] for each in group], ".1f"),
            spread([each.loss for each in group], ".3f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: Sequence[float], form: str) -> str:
    """`6.4 (6.1-6.9)`: mean, minimum and maximum over seeds."""
    return f"{mean(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def plot(outcomes: Sequence[AsyncOutcome], path: Path) -> None:
    """Plot the longest row over updates: one panel per rate, mean and range over seeds."""
    rates = list(dict.fromkeys(each.rate for each in outcomes))
    figure = Figure(figsize=(4.2 * len(rates), 3.6), layout="constrained")
    for axes, rate in zip(figure.subplots(1, len(rates), sharey=True, squeeze=False)[0], rates, strict=True):
        for fetch_every in sorted({each.fetch_every for each in outcomes}):
            group = [each for each in outcomes if (each.rate, each.fetch_every) == (rate, fetch_every)]
            shortest = min(len(each.norms) for each in group)
            norms = np.array([each.norms[:shortest] for each in group])
            label = f"stale by {mean(each.staleness for each in group):.0f}" if fetch_every else "synchronous"
            (line,) = axes.plot(norms.mean(axis=0), label=label, linewidth=2.2 if not fetch_every else 1.3)
            axes.fill_between(
                np.arange(shortest), norms.min(axis=0), norms.max(axis=0), alpha=0.2, color=line.get_color()
            )
        axes.set(title=f"Adam, rate {rate:g}", xlabel="updates", yscale="log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#d5dbe1", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("longest embedding row")
    figure.savefig(path, dpi=144)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1])
    parser.add_argument("--fetch-every", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for sync_vs_async.{md,png}")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = sweep(Path(folder), options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sync_vs_async.md").write_text(table_of(outcomes) + "\n")
    plot(outcomes, options.out / "sync_vs_async.png")
    print(table_of(outcomes), f"\n{time.monotonic() - began:.0f} s; plot in {options.out / 'sync_vs_async.png'}")


if __name__ == "__main__":
    main()
