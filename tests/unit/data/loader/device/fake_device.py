"""A device with streams and a clock of its own, for feeds without a GPU."""

from __future__ import annotations

import ctypes
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from forebay.data.loader.batch import Batch

INCOMPLETE = -1


@dataclass
class FakeEvent:
    """Point in a stream: complete once the clock has passed it."""

    device: FakeDevice
    at: float

    def query(self) -> bool:
        return self.at <= self.device.now

    def synchronize(self) -> None:
        self.device.advance_to(self.at)


@dataclass
class FakeDevice:
    """`DeviceCopies` of a device whose copies take the given times, on several engines, so later ones may end first.

    A copy reads the host's memory when it ends, so it shows whatever was written there meanwhile. Work reads its
    batch when it begins. Time passes only in `advance_to`.
    """

    copy_times: Sequence[float]
    num_engines: int = 1
    now: float = 0.0
    results: list[list[int]] = field(default_factory=list)
    busy: float = 0.0

    def __post_init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._times = itertools.cycle(self.copy_times)
        self._engines = [0.0] * self.num_engines
        self._started = 0
        self._compute_free = 0.0

    def start(self, host: Batch) -> Batch:
        batch = host.with_arrays({name: torch.full_like(each, INCOMPLETE) for name, each in host.items()})
        engine = self._started % self.num_engines
        self._started += 1
        end = max(self._engines[engine], self.now) + next(self._times)
        self._engines[engine] = end
        # Addresses instead of tensors: a real copy keeps no reference to the host's memory either.
        sources = {name: _Memory(each) for name, each in host.items()}
        self._at(end, lambda: [batch[name].copy_(source.read()) for name, source in sources.items()])
        batch.copied = FakeEvent(self, end)
        return batch

    def hand_out(self, batch: Batch) -> Batch:
        self._compute_free = max(self._compute_free, batch.copied.at)
        return batch

    def work(self, batch: Batch, takes: float) -> FakeEvent:
        """Enqueue work on the batch, which takes this long. Returns its event."""
        begin = max(self._compute_free, self.now)
        self._compute_free = begin + takes
        self.busy += takes
        self._at(begin, lambda: self.results.append(batch["id"].tolist()))
        return FakeEvent(self, self._compute_free)

    def advance_to(self, now: float) -> None:
        """Let the clock run."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        self.now = max(self.now, now)

    def _at(self, when: float, effect: Callable[[], object]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), effect))


class _Memory:
    """Reads a tensor's memory later, without holding it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._pointer, self._shape, self._dtype = tensor.data_ptr(), tensor.shape, tensor.dtype

    def read(self) -> torch.Tensor:
        num_bytes = self._shape.numel() * self._dtype.itemsize
        return torch.frombuffer(bytearray(ctypes.string_at(self._pointer, num_bytes)), dtype=self._dtype)
