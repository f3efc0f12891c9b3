"""Share of time a GPU is busy while a two-tower model trains from the cache. Needs a GPU.

    python -m bench.device.gpu_feed --json gpu_feed.json [--quick]

The same steps run on batches that stay on the device, and on batches of the loader, in turn. The share is the time of
the first, by CUDA events, divided by the time of the second. Both wait for the device once, at their end.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import forebay as fb
from bench.loader.data import make
from bench.own.verdict import Figure, interleaved, main, measure, spread

LEAST_BUSY = 0.95
WARM_UP_STEPS = 20
NO_GPU = "gpu_feed needs a GPU: PyTorch finds none here, so nothing was measured."


def busy(data: str, cache: str, global_batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Seconds of `steps` steps on batches of the device and on batches of the loader, in every round."""
    import torch  # noqa: PLC0415 - slow to import

    manifest = fb.scan(data)
    names = [name for name in manifest.columns if name != "label"]
    transform = fb.Transform(x=fb.Dense(names), label=fb.Label("label"))
    disk = fb.DiskCache(cache, quota_bytes=16 << 30, min_free_bytes=0)
    step = two_tower(len(names))
    with fb.Loader(
        fb.build_plan(manifest), transform, disk, global_batch=global_batch, epochs=1 << 30, last="drop", device="cuda"
    ) as loader:
        fed = endless(loader)
        for batch in islice(fed, max(len(loader), WARM_UP_STEPS)):
            step(batch)  # also fills the cache
        kept = [batch for batch, _ in zip(fed, range(4), strict=False)]
        torch.cuda.synchronize()
        feeds: dict[str, Iterable[fb.Batch]] = {"kept": cycle(kept), "fed": fed}
        times = interleaved(list(feeds), rounds, lambda name: seconds(step, islice(feeds[name], steps)))
    return times | {"gpu": torch.cuda.get_device_name()}


def endless(loader: fb.Loader) -> Iterator[fb.Batch]:
    """Batches of epoch after epoch."""
    while True:
        yield from loader


def seconds(step: Callable[[fb.Batch], None], batches: Iterable[fb.Batch]) -> float:
    """Time of the steps on the device, with its waits."""
    import torch  # noqa: PLC0415 - slow to import

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for batch in batches:
        step(batch)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def two_tower(num_columns: int) -> Callable[[fb.Batch], None]:
    """Step of two towers, each over half of the columns, with every other row of the batch as a negative."""
    import torch  # noqa: PLC0415 - slow to import

    torch.manual_seed(0)
    half = num_columns // 2

    def tower(inputs: int) -> torch.nn.Module:
        hidden = [torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
        return torch.nn.Sequential(torch.nn.Linear(inputs, 1024), torch.nn.ReLU(), *hidden, torch.nn.Linear(1024, 128))

    user, item = tower(half).cuda(), tower(num_columns - half).cuda()
    optimizer = torch.optim.AdamW([*user.parameters(), *item.parameters()], lr=1e-3, fused=True)

    def step(batch: fb.Batch) -> None:
        scores = user(batch["x"][:, :half]) @ item(batch["x"][:, half:]).T
        own = torch.arange(len(scores), device=scores.device)
        torch.nn.functional.cross_entropy(scores, own).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Share of time the device is busy. No figure without a GPU."""
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        print(NO_GPU)
        return []
    rows, row_groups, steps, rounds = (20_000, 8, 10, 1) if quick else (2_000_000, 64, 400, 5)
    data = make("dense", folder, rows=rows, row_groups=row_groups)
    arguments = {"global_batch": 1024 if quick else 8192, "steps": steps, "rounds": rounds}
    found = measure(__spec__.name, "busy", data=data, cache=folder / "cache", **arguments)
    shares = [kept / fed for kept, fed in zip(found["kept"], found["fed"], strict=True)]
    median = statistics.median(shares)
    figure = Figure(
        figure="share of time the device is busy, two-tower model, cached epoch",
        target=f">= {LEAST_BUSY}",
        measured=median,
        unit="of the time",
        passed=median >= LEAST_BUSY,
        note=f"{spread(shares)} in {rounds} rounds of {steps} steps; {found['gpu']}",
    )
    return [figure]


if __name__ == "__main__":
    main(figures, {"busy": busy})
