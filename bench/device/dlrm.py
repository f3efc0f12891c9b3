"""A DLRM for click logs, its step, and the clock of a training loop: the same for every way of feeding.

100 numbers go through a small network, 26 ids through one table, and the dot products of all pairs through a deep one
(https://arxiv.org/abs/1906.00091). Without a GPU, the model is small enough for one core.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from bench.device.clicks import DENSE, IDS
from bench.process_usage import cpu_s, memory_in_use

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BUCKETS, DIM, WIDTH = (1 << 21, 64, 1024) if CUDA else (1 << 12, 16, 64)
_WARM_STEPS = 30 if CUDA else 3
_NUM_KEPT = 4
Arrays = Mapping[str, torch.Tensor]


class Dlrm(nn.Module):
    """Logits of clicks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, DIM, sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)
        self.lower = nn.Sequential(nn.Linear(len(DENSE), WIDTH // 2), nn.ReLU(), nn.Linear(WIDTH // 2, DIM), nn.ReLU())
        count = len(IDS) + 1
        pairs = torch.triu_indices(count, count, offset=1)
        self.register_buffer("flat", pairs[0] * count + pairs[1])
        sizes = [DIM + pairs.shape[1], WIDTH, WIDTH, WIDTH // 2, 1]
        layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
        self.upper = nn.Sequential(*layers[:-1])

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        low = self.lower(dense)
        vectors = torch.cat([low.unsqueeze(1), self.table(ids.long())], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, self.flat)
        return self.upper(torch.cat([low, products], dim=1))[:, 0]


class Trainer:
    """One step: AdamW for the networks, SGD on the rows of the table that a batch looks up."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.model = Dlrm().to(DEVICE)
        layers = [each for name, each in self.model.named_parameters() if not name.startswith("table")]
        self._dense = torch.optim.AdamW(layers, lr=1e-3, fused=CUDA)
        self._sparse = torch.optim.SGD([self.model.table.weight], lr=0.1)
        self._criterion = nn.BCEWithLogitsLoss()

    def __call__(self, batch: Arrays) -> None:
        self._criterion(self.model(batch["dense"], batch["ids"]), batch["label"]).backward()
        self._dense.step()
        self._sparse.step()
        self._dense.zero_grad()
        self._sparse.zero_grad()


def ceiling(step: Trainer, rows: int, seconds: float) -> dict[str, Any]:
    """The same steps on batches that stay on the device."""
    made = torch.Generator(device=DEVICE).manual_seed(1)
    kept = [
        {
            "dense": torch.randn(rows, len(DENSE), device=DEVICE, generator=made),
            "ids": torch.randint(BUCKETS, (rows, len(IDS)), device=DEVICE, generator=made),
            "label": torch.randint(2, (rows,), device=DEVICE, generator=made).float(),
        }
        for _ in range(_NUM_KEPT)
    ]
    clock(step, itertools.cycle(kept), 30, most=_WARM_STEPS)
    return clock(step, itertools.cycle(kept), seconds)


def clock(step: Trainer, batches: Iterable[Arrays], seconds: float, most: int = 1 << 60) -> dict[str, Any]:
    """Train for `seconds`, or until the batches end.

    `in_steps` is the time of the steps on the device, by events, over all time: the rest is time without work.
    """
    iterator = iter(batches)
    _synchronize()
    rows, waited, first, marks = 0, 0.0, None, list[tuple[torch.cuda.Event, torch.cuda.Event]]()
    steps, cpu, began = 0, cpu_s(), time.perf_counter()  # CPU first: 40 ms for 16 processes
    while steps < most and (not steps or time.perf_counter() - began < seconds):
        asked = time.perf_counter()
        batch = next(iterator, None)
        now = time.perf_counter()
        if batch is None:
            break
        waited, first = waited + now - asked, now - began if first is None else first
        begin = _mark()
        step(batch)
        if begin is not None and (end := _mark()) is not None:
            marks.append((begin, end))
        steps, rows = steps + 1, rows + len(batch["label"])
        del batch
    _synchronize()
    spent = time.perf_counter() - began
    used, memory = cpu_s() - cpu, memory_in_use()
    return {
        "steps": steps,
        "rows": rows,
        "seconds": round(spent, 3),
        "mrows_s": round(rows / spent / 1e6, 4),
        "step_ms": round(1e3 * spent / max(steps, 1), 3),
        "in_steps": round(sum(a.elapsed_time(b) for a, b in marks) / 1e3 / spent, 3) if marks else None,
        "wait_share": round(waited / spent, 3),
        "first_batch_s": None if first is None else round(first, 3),
        "cores": round(used / spent, 2),
        "cpu_s_per_mrow": round(1e6 * used / rows, 3) if rows else None,
        "private_mb": round(memory.private_bytes / 1e6),
        "shared_mb": round(memory.shared_bytes / 1e6),
        "processes": memory.num_processes,
    }


def _mark() -> torch.cuda.Event | None:
    """Event in the stream of the steps."""
    if not CUDA:
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()
