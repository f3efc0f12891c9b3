"""Jobs with one planted bottleneck each, examined by `forebay doctor` again and again: is the planted bottleneck named?

python studies/planted_bottlenecks.py --runs 20 --out docs/experiments

Each job trains a small network on 24 row groups of 4,096 rows and 32 floats. All but one of its stages are quick.
With --load N, N processes keep the cores busy meanwhile. --budget ends the study after that many seconds; the next call
with the same --out goes on with the jobs that have the fewest runs, until each has --runs.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import typer
from fsspec.implementations.local import LocalFileSystem
from reports.page import kept_reading
from torch import nn

import forebay as fb
from forebay.doctor.diagnose import Diagnosis, ExaminationOptions, diagnose

COLUMNS, ROWS, GROUPS = 32, 4096, 24
READ_DELAY_S = 0.3
LINK_BYTES_PER_S = 5e6
HEAVY_ROUNDS = 60
PYTHON_ROUNDS = 400
"""Rounds of the transforms, and the link: a planted bottleneck takes at least twice the time of every other stage."""
LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Job with a planted bottleneck, and the names of bottlenecks that are right for it."""

    title: str
    bottleneck: str
    job: Callable[[Path, Path], fb.Job]
    copy: Callable[[fb.Batch], fb.Batch] | None = None


class SlowFileSystem(LocalFileSystem):
    """Local files of a store that takes `READ_DELAY_S` to open one and for each read."""

    protocol = "slowstore"
    cachable = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        time.sleep(READ_DELAY_S)
        return super()._open(path, mode, **options)


def slow_link(batch: fb.Batch) -> fb.Batch:
    """Copy of a batch over a played link."""
    time.sleep(sum(array.nbytes for array in batch.values()) / LINK_BYTES_PER_S)
    return batch.to("cpu")


def heavy(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Transform of array operations, which hold the GIL for a moment each."""
    made = light(batch)
    values = made["x"].astype(np.float64)
    for _ in range(HEAVY_ROUNDS):
        values = np.sin(values)
    return made | {"x": values.astype(np.float32)}


def locked(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """The same under a lock of the process."""
    with LOCK:
        return heavy(batch)


def in_python(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Transform of a Python loop, which holds the GIL."""
    made = light(batch)
    total = 0
    for _ in range(PYTHON_ROUNDS):
        for value in range(len(batch)):
            total += value * value
    return made


def light(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Columns as one array."""
    columns = [batch.column(f"x{number}").to_numpy() for number in range(COLUMNS)]
    return {"x": np.stack(columns, axis=1), "label": batch.column("label").to_numpy()}


class Network(nn.Module):
    """Layers of `width`, with a logit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(COLUMNS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, batch: fb.Batch) -> torch.Tensor:
        return self.layers(batch["x"]).squeeze(1)


def train(worker: fb.Worker, width: int, in_lock: bool = False) -> None:
    """Loop of a train function, with a lock around its steps if wanted."""
    model, optimizer = worker.setup(Network(width), partial(torch.optim.SGD, lr=1e-3))
    criterion = nn.BCEWithLogitsLoss()
    for batch in worker.loader():
        if in_lock:
            LOCK.acquire()
        loss = worker.backward(batch, lambda part: criterion(model(part), part["label"]))
        optimizer.step()
        optimizer.zero_grad()
        if in_lock:
            LOCK.release()
        worker.commit(loss=loss)


def job(
    folder: Path,
    cache: Path,
    *,
    fn: Callable[..., Any] | None = None,
    width: int = 8,
    global_batch: int = 512,
    scheme: str = "",
    in_lock: bool = False,
) -> fb.Job:
    """Job on the data in `folder`, quick in all of its stages but for what is given."""
    names = [f"x{number}" for number in range(COLUMNS)]
    features = fb.Transform(x=fb.Dense(names), label=fb.Label("label"))
    transform = features if fn is None else fb.Transform(fn=fn, version="1")
    plan = fb.build_plan(fb.scan(f"{scheme}{folder}"), lanes=16)
    return fb.Job(
        train=partial(train, width=width, in_lock=in_lock),
        resources=fb.Resources(gpus=0),
        data=fb.Data(plan=plan, transform=transform, global_batch=global_batch),
        epochs=3,
        cache=fb.CacheSpec(path=str(cache / "cache"), min_free_bytes=0),
        storage=str(cache / "runs"),
    )


PLANTED = {
    "store": Planted(title="slow store", bottleneck="network", job=partial(job, scheme="slowstore://")),
    "transform": Planted(title="heavy transform", bottleneck="transform", job=partial(job, fn=heavy)),
    "batch": Planted(title="tiny batches", bottleneck="batch", job=partial(job, global_batch=8)),
    "copy": Planted(title="slow copy", bottleneck="copy", job=job, copy=slow_link),
    "model": Planted(title="heavy model", bottleneck="compute", job=partial(job, width=1024)),
    "lock": Planted(title="lock in the transform", bottleneck="lock", job=partial(job, fn=locked)),
    "gil": Planted(title="Python loop in the transform", bottleneck="lock", job=partial(job, fn=in_python)),
    "shared": Planted(
        title="lock shared with the train function",
        bottleneck="lock",
        job=partial(job, fn=locked, width=768, in_lock=True),
    ),
}


def write_data(folder: Path) -> None:
    """Write the Parquet files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(GROUPS):
        columns = {f"x{column}": rng.random(ROWS, np.float32) for column in range(COLUMNS)}
        table = pa.table(columns | {"label": rng.integers(0, 2, ROWS).astype(np.float32)})
        pq.write_table(table, folder / f"{number:02}.parquet", use_dictionary=False)


def examined(planted: Planted, folder: Path, *, seconds: float) -> Diagnosis:
    """Examine one job on the data in `folder`."""
    fsspec.register_implementation("slowstore", f"{SlowFileSystem.__module__}.SlowFileSystem", clobber=True)
    with tempfile.TemporaryDirectory() as place:
        made = planted.job(folder, Path(place))
        return diagnose(made, ExaminationOptions(seconds=seconds, copy=planted.copy))


@contextmanager
def load(num_processes: int) -> Iterator[None]:
    """Processes that keep cores busy."""
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=_spin, daemon=True) for _ in range(num_processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        hash(time.time())


def table_of(found: list[dict[str, Any]]) -> list[str]:
    """Table with one line for each job and load."""
    lines = [
        "| job | planted bottleneck | busy processes beside it | seconds of a run | right | named otherwise |",
        "|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((each["job"], each["load"], each["seconds"]) for each in found):
        runs = [each for each in found if (each["job"], each["load"], each["seconds"]) == key]
        planted = PLANTED[key[0]]
        named = Counter(each["bottleneck"] for each in runs)
        right = named.pop(planted.bottleneck, 0)
        others = ", ".join(f"{name} {count}" for name, count in named.most_common())
        lines.append(
            f"| {planted.title} | {planted.bottleneck} | {key[1]} | {key[2]:g} | {right} of {len(runs)} | {others} |"
        )
    return lines


def text_of(found: list[dict[str, Any]]) -> str:
    """Page with the table."""
    head = [
        "# Planted bottlenecks",
        "`python studies/planted_bottlenecks.py` examines jobs with one planted bottleneck each by `forebay doctor`.",
        "",
    ]
    return "\n".join([*head, *table_of(found), ""])


def fewest(found: list[dict[str, Any]], names: list[str], *, runs: int, like: dict[str, Any]) -> str | None:
    """Job with the fewest runs of this kind. None if each has `runs`."""
    done = {name: sum(like.items() <= each.items() and each["job"] == name for each in found) for name in names}
    name = min(names, key=done.__getitem__)
    return name if done[name] < runs else None


def main(
    runs: Annotated[int, typer.Option(help="Runs of each job, with earlier calls in --out.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help=f"Jobs: {', '.join(PLANTED)}.")] = None,
    seconds: Annotated[float, typer.Option(help="Time of one run.")] = 5.0,
    budget: Annotated[float, typer.Option(help="Seconds after which no further run starts.")] = float("inf"),
    busy: Annotated[int, typer.Option("--load", help="Processes that keep cores busy meanwhile.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the page. Earlier runs in it are kept.")] = Path(),
) -> None:
    numbers, page = out / "planted-bottlenecks.json", out / "planted-bottlenecks.md"
    found: list[dict[str, Any]] = json.loads(numbers.read_text()) if numbers.exists() else []
    names, like, ends = only or list(PLANTED), {"load": busy, "seconds": seconds}, time.monotonic() + budget
    with tempfile.TemporaryDirectory() as place, load(busy):
        folder = Path(place) / "data"
        write_data(folder)
        while (name := fewest(found, names, runs=runs, like=like)) and time.monotonic() < ends:
            diagnosis = examined(PLANTED[name], folder, seconds=seconds)
            bottleneck = diagnosis.verdict.bottleneck
            found.append({"job": name, **like, "bottleneck": bottleneck.name, "tied": bottleneck.tied_with})
            print(f"{time.strftime('%T')} {name}: {bottleneck.name}, tied {bottleneck.tied_with}", flush=True)
            numbers.write_text(json.dumps(found) + "\n")
            page.write_text("\n".join([text_of(found), *kept_reading(page)]))
    print("\n".join(table_of(found)))


if __name__ == "__main__":
    typer.run(main)
