"""Slowdown of a trainer by the data workers that fill a cold cache beside it.

python -m bench.own.slowdown --json slowdown.json [--quick] [--variants]

The trainer computes without waiting for data. Its steps per second are counted alone and beside data workers that
never run out of row groups, in turn. This is worse than a real epoch, in which they finally wait for the trainer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forebay as fb
from bench.loader.data import make
from bench.own.verdict import Figure, interleaved, main, measure, spread
from bench.processes import command, environment
from forebay.data.cache.builders import block_pool
from forebay.data.cache.builders.data_workers import NICENESS, CoreShare, DataWorkers
from forebay.data.cache.source import LocalSource
from forebay.runtime.metrics import Counters

MOST_SLOWDOWN = 0.10
WARM_UP_STEPS = 20


@dataclass(frozen=True)
class Variant:
    """Place of the data workers, their niceness, and whether they are pinned to one core."""

    place: str
    core_share: CoreShare = fb.CacheSpec().core_share
    niceness: int = NICENESS
    pinned: bool = False


SHIPPED = {"same process": Variant("here"), "another process": Variant("there")}
OTHERS = {
    f"{where}, {how}": Variant(place, **options)
    for where, place in (("same process", "here"), ("another process", "there"))
    for how, options in {
        "not nice": {"niceness": 0},
        "niceness 19": {"niceness": 19},
        "pinned": {"pinned": True},
        "pinned, not nice": {"pinned": True, "niceness": 0},
        "all cores, not nice": {"core_share": 1.0, "niceness": 0},
    }.items()
}
VARIANTS = SHIPPED | OTHERS


class Fill:
    """Data workers that fill the cache over and over, until closed."""

    def __init__(self, variant: Variant, data: str, cache: str) -> None:
        block_pool.lower_thread_priority = lambda: _take_place(variant)
        self._cache = fb.DiskCache(cache, quota_bytes=8 << 30, min_free_bytes=0)
        manifest = fb.scan(data)
        self._counters, columns = Counters(), [name for name in manifest.columns if name != "label"]
        self._options = {"counters": self._counters, "workers": DataWorkers(core_share=variant.core_share)}
        self._dataset = fb.Dataset(manifest, fb.Transform(x=fb.Dense(columns), label=fb.Label("label")))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="bench-fill")
        self._thread.start()

    @property
    def num_stored(self) -> int:
        """Number of blocks stored so far."""
        return int(self._counters["stores"])

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _fill(self) -> None:
        while not self._closed.is_set():
            with closing(LocalSource(self._dataset, self._cache, **self._options)) as source:
                futures = [source.request(index) for index in range(len(self._dataset.manifest))]
                while not futures[-1].done() and not self._closed.wait(0.02):
                    pass
            self._cache.clear()


def _take_place(variant: Variant) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, max(variant.niceness, os.getpriority(os.PRIO_PROCESS, 0)))
    if variant.pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def fill_until_told(variant: str, data: str, cache: str) -> int:
    """Fill the cache until standard input ends. Returns the number of stored blocks. For a process of its own."""
    with closing(Fill(VARIANTS[variant], data, cache)) as fill:
        print("filling", flush=True)
        sys.stdin.read()
    return fill.num_stored


@contextmanager
def beside(name: str, data: str, cache: str) -> Iterator[None]:
    """Run data workers of variant `name` for the duration of the block."""
    if name == "alone":
        yield
    elif VARIANTS[name].place == "here":
        with closing(Fill(VARIANTS[name], data, cache)):
            yield
    else:
        call = json.dumps({"measure": "fill", "variant": name, "data": data, "cache": cache})
        line = command(__spec__.name, "--child", call)
        with subprocess.Popen(  # noqa: S603
            line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout
            assert other.stdout.readline() == "filling\n"
            yield
            other.communicate()


def trainer(threads: int) -> Callable[[], None]:
    """One step of a small network on data in memory."""
    import torch  # noqa: PLC0415 - slow to import, and a process that only fills has no use for it

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    layers = [torch.nn.Linear(100, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, label = torch.randn(2048, 100), torch.rand(2048, 1).round()

    def step() -> None:
        torch.nn.functional.binary_cross_entropy_with_logits(model(x), label).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(threads: int, names: Sequence[str], rounds: int, seconds: float, data: str, cache: str) -> dict[str, Any]:
    """Steps per second of a trainer with `threads` threads, alone and beside each of `names`, in every round."""
    step = trainer(threads)

    def rate(name: str) -> float:
        with beside(name, data, cache):
            for _ in range(WARM_UP_STEPS):
                step()
            steps, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < seconds:
                step()
                steps += 1
            return steps / passed

    return interleaved(["alone", *names], rounds, rate)


def figures(folder: Path, quick: bool, names: Sequence[str] = tuple(SHIPPED)) -> list[Figure]:
    """Slowdown of trainers with one thread and with two."""
    rows, row_groups, rounds, seconds = (20_000, 8, 1, 0.2) if quick else (500_000, 32, 7, 2.0)
    data = make("dense", folder, rows=rows, row_groups=row_groups)
    found = []
    for threads in (1,) if quick else (1, 2):
        arguments = {"names": names, "rounds": rounds, "seconds": seconds, "data": data, "cache": folder / "cache"}
        rates = measure(__spec__.name, "train", threads=threads, **arguments)
        for name in names:
            lost = [1 - beside / alone for beside, alone in zip(rates[name], rates["alone"], strict=True)]
            found.append(_figure(f"trainer of {threads} thread(s) slowed down, {name}", lost, name in SHIPPED))
    return found


def _figure(figure: str, lost: Sequence[float], shipped: bool) -> Figure:
    median = statistics.median(lost)
    return Figure(
        figure=figure,
        target=f"<= {MOST_SLOWDOWN}" if shipped else "-",
        measured=median,
        unit="of its speed",
        passed=median <= MOST_SLOWDOWN if shipped else None,
        note=f"{spread(lost, 2)} in {len(lost)} rounds; {os.cpu_count()} cores, {DataWorkers().num_cores()} to work on",
    )


def all_figures(folder: Path, quick: bool) -> list[Figure]:
    """Figures as shipped, and of all other variants."""
    return figures(folder, quick, tuple(VARIANTS))


if __name__ == "__main__":
    with_variants = "--variants" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--variants"]
    main(all_figures if with_variants else figures, {"train": train, "fill": fill_until_told})
