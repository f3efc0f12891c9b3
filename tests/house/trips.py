"""Modules and functions of the package that a trip calls: `python -m tests.house.trips [FOLDER]`.

A trip is what a reader must follow to understand one thing: a first batch, a commit, the start of a run. Imports are
not counted: each trip is made once before it is traced.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import forebay as fb

ROOT = f"{Path(fb.__file__).parent}/"
_PASSED_THROUGH = ("runtime/late_import.py", "_hinting.<locals>.call")
"""Wrapper of public names: it words errors, and a reader follows what it calls."""
_OPTIMIZED = 1  # flag of a function's code; a class or module lacks it


@dataclass(slots=True)
class Calls:
    """Functions of the package that were called, as `module:function`."""

    functions: set[str] = field(default_factory=set)

    @property
    def modules(self) -> list[str]:
        return sorted({name.partition(":")[0] for name in self.functions})

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & _OPTIMIZED and code.co_filename.startswith(ROOT):
            called = (code.co_filename.removeprefix(ROOT), code.co_qualname)
            if called != _PASSED_THROUGH:
                self.functions.add(":".join(called))


@contextmanager
def traced() -> Iterator[Calls]:
    """Note the calls of this thread, and of threads that start within."""
    calls = Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def train(worker: fb.Worker, found: dict[str, Calls]) -> None:
    model, optimizer = worker.setup(torch.nn.Linear(2, 1), partial(torch.optim.SGD, lr=0.1))
    for number, batch in enumerate(worker.loader()):
        model(batch["x"]).mean().backward()
        optimizer.step()
        if number == 2:
            time.sleep(0.2)  # Steps are reported 10 times a second at most: the traced one is.
        with traced() as calls:
            worker.commit()
        if number == 2:
            found["commit"] = calls


def trips(folder: Path) -> dict[str, Calls]:
    """Calls of each trip, over a small dataset below `folder`."""
    rng = np.random.default_rng(0)
    columns = {name: rng.random(4000, dtype=np.float32) for name in ("a", "b")}
    (folder / "data").mkdir()
    table = pa.table(columns | {"label": rng.integers(0, 2, 4000).astype(np.int8)})
    pq.write_table(table, folder / "data" / "x.parquet", row_group_size=1000)
    manifest = fb.scan(str(folder / "data"))
    transform = fb.Transform(x=fb.Dense(["a", "b"]), label=fb.Label("label"))
    data = fb.Data(plan=fb.build_plan(manifest, seed=1, lanes=4), transform=transform, global_batch=256)
    found: dict[str, Calls] = {}

    def first_batch(name: str) -> Calls:
        with traced() as calls:
            cache = fb.DiskCache(folder / name, quota_bytes=1 << 26, min_free_bytes=0)
            loader = fb.Loader(data.plan, data.transform, cache, global_batch=256)
            batches = iter(loader)
            next(batches)
        for _ in batches:
            pass
        loader.close()
        return calls

    first_batch("warm")
    found["cold batch"] = first_batch("cold")
    found["cached batch"] = first_batch("cold")

    def run(name: str) -> None:
        started: list[Any] = []

        def stop_tracing(event: fb.events.Event, _: fb.Control) -> None:
            if isinstance(event, fb.events.Started) and not started:
                started.append(event)
                sys.setprofile(None)
                found["run"] = Calls(set(calls.functions))

        cache = fb.CacheSpec(path=str(folder / "cache"), quota_bytes=1 << 26, min_free_bytes=0)
        job = fb.Job(train=partial(train, found=found), data=data, name=name, storage=str(folder / "runs"), cache=cache,
                     checkpoint_every=1)  # fmt: skip
        with traced() as calls:
            fb.run(job, driver="local", callbacks=[stop_tracing])

    run("first")
    run("second")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        calls_of = trips(Path(sys.argv[1] if sys.argv[1:] else made))
    print(
        json.dumps(
            {name: {"modules": each.modules, "functions": len(each.functions)} for name, each in calls_of.items()}
        )
    )
