"""A batch is not overwritten before its copy ended, and not read before it is complete."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.loader.device.fake_device import INCOMPLETE, FakeDevice

import forebay as fb
from forebay.data.loader import pipeline
from forebay.data.loader.batch import Batch, start_copy, start_plain_copy
from forebay.data.loader.device.feed import DeviceFeed
from forebay.data.loader.device.in_flight import CopyRing
from forebay.errors import InvalidOption
from forebay.runtime.memory.buffers import BufferPool

ROWS = 4
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Gathered:
    """Batches gathered into reused buffers, as the loader's are."""

    def __init__(self, num_batches: int) -> None:
        self._num_batches, self._made = num_batches, 0
        self._pool = BufferPool(kept_bytes=1 << 20)
        self.addresses: set[int] = set()

    def get(self) -> Batch | None:
        if self._made == self._num_batches:
            return None
        arrays, _ = self._pool.lease_arrays({"id": (np.int64, (ROWS,))})
        arrays["id"][:] = expected(self._made)
        self._made += 1
        tensor = torch.from_numpy(arrays["id"])
        self.addresses.add(tensor.data_ptr())
        return Batch({"id": tensor}, num_rows=ROWS)


def expected(number: int) -> list[int]:
    return list(range(number * ROWS, number * ROWS + ROWS))


@dataclass
class Ahead:
    """Batches on a device whose copies the gathering thread starts: `ahead[i]` of them before step i, 1 in the end."""

    feed: DeviceFeed
    host: Gathered
    ahead: list[int]
    steps: int = 0

    def __post_init__(self) -> None:
        self.started: deque[Batch] = deque()

    def next(self) -> Batch | None:
        wanted = self.ahead[self.steps % len(self.ahead)] if self.ahead else 1
        self.steps += 1
        while len(self.started) < max(wanted, 1) and (batch := self.host.get()) is not None:
            self.started.append(self.feed.start(batch))
            del batch
        return self.feed.hand_out(self.started.popleft()) if self.started else None


def train(
    device: FakeDevice, host: Gathered, ring: CopyRing, *, work: float, waits: bool, ahead: list[int] | None = None
) -> None:
    """Work on each batch, which the host waits for, or not."""
    batches = Ahead(DeviceFeed(device, ring), host, [2] if ahead is None else ahead)
    while (batch := batches.next()) is not None:
        done = device.work(batch, work)
        device.advance_to(done.at if waits else device.now + 0.1)
    device.advance_to(1e9)


TIMES = st.lists(st.floats(0.01, 30), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    copy_times=TIMES, engines=st.integers(1, 3), slots=st.integers(1, 4), work=st.floats(0, 9),
    waits=st.booleans(), ahead=st.lists(st.integers(1, 9), max_size=4),
)  # fmt: skip
def test_every_batch_is_read_whole_and_in_order(
    copy_times: list[float], engines: int, slots: int, work: float, waits: bool, ahead: list[int]
) -> None:
    device, host = FakeDevice(copy_times, engines), Gathered(24)
    train(device, host, CopyRing(slots), work=work, waits=waits, ahead=ahead)
    assert device.results == [expected(number) for number in range(24)]
    assert len(host.addresses) <= slots + 2, "buffers are reused, and the host never runs far ahead"


def test_the_fake_device_shows_memory_that_is_reused_too_early() -> None:
    class Forgetful(CopyRing):
        def hold(self, event: object, host: object) -> None:
            """Hold nothing."""

    device = FakeDevice([5.0])
    train(device, Gathered(8), Forgetful(), work=1, waits=False)
    assert device.results != [expected(number) for number in range(8)]


def test_the_fake_device_shows_a_batch_that_is_read_too_early() -> None:
    class Hasty(FakeDevice):
        def hand_out(self, batch: Batch) -> Batch:
            return batch

    device = Hasty([5.0])
    train(device, Gathered(8), CopyRing(), work=1, waits=False)
    assert device.results[0] == [INCOMPLETE] * ROWS


def test_copies_run_while_the_trainer_waits_for_its_step() -> None:
    device = FakeDevice([5.0])
    batches = Ahead(DeviceFeed(device), Gathered(100), [2])
    while (batch := batches.next()) is not None:
        device.work(batch, 10.0).synchronize()
    assert device.now == 5 + 100 * 10, "only the first copy is waited for"
    assert device.busy / device.now > 0.99


@dataclass
class RecordedDevice:
    """`DeviceCopies` in main memory that note their threads, and what is on the device and not yet handed out."""

    threads: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    most_bytes: int = 0
    _bytes: int = 0

    def start(self, host: Batch) -> Batch:
        self.threads["start"].add(threading.get_ident())
        self._bytes += _bytes_of(host)
        self.most_bytes = max(self.most_bytes, self._bytes)
        return host.with_arrays({name: each.clone() for name, each in host.items()})

    def hand_out(self, batch: Batch) -> Batch:
        self.threads["hand_out"].add(threading.get_ident())
        self._bytes -= _bytes_of(batch)
        return batch


def _bytes_of(batch: Batch) -> int:
    return sum(each.nbytes for each in batch.values())


def test_copies_are_started_off_the_trainers_thread_and_bounded(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = RecordedDevice()
    monkeypatch.setattr(pipeline, "open_copies", lambda _: copies)
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [4000] * 4})), seed=1)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"))

    def ids(**options: Any) -> list[list[int]]:
        with fb.Loader(plan, transform, global_batch=500, **options) as loader:
            return [batch["id"].tolist() for _ in range(2) for batch in loader]

    assert ids(device="meta", prefetch_bytes=64_000) == ids()
    assert copies.threads["hand_out"] == {threading.get_ident()}
    assert len(copies.threads["start"]) == 1 and not copies.threads["start"] & copies.threads["hand_out"]
    assert copies.most_bytes <= 16_000 + 2 * 4_000, "a quarter, one in the gathering thread's hand, one handed out"


def test_an_error_of_a_copy_is_raised_where_the_batch_would_have_been(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(RecordedDevice):
        def start(self, host: Batch) -> Batch:
            if host.position == 24:
                raise torch.OutOfMemoryError("the device is full")
            return super().start(host)

    monkeypatch.setattr(pipeline, "open_copies", lambda _: Full())
    plan, transform = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40]}))), fb.Transform(x=fb.Dense(["x0"]))
    with fb.Loader(plan, transform, global_batch=8, device="meta") as loader:
        batches = iter(loader)
        assert [next(batches).position for _ in range(3)] == [0, 8, 16]
        with pytest.raises(torch.OutOfMemoryError, match="the device is full"):
            next(batches)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"device": "cuda:77"}, "PyTorch finds"),
        ({"device": "grapes"}, "is not a device"),
        ({"device": "meta", "as_numpy": True}, "as_numpy"),
    ],
)
def test_a_wrong_device_is_refused(parquet_folder: Callable[..., Path], options: dict[str, object], match: str) -> None:
    plan, transform = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40]}))), fb.Transform(x=fb.Dense(["x0"]))
    with pytest.raises(InvalidOption, match=match):
        fb.Loader(plan, transform, global_batch=8, **options)  # type: ignore[arg-type]


def test_without_a_device_no_cuda_context_is_opened(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a CUDA context was opened")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.cuda, "current_device", refuse)
    plan, transform = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40]}))), fb.Transform(x=fb.Dense(["x0"]))
    for device in (None, "cpu"):
        with fb.Loader(plan, transform, global_batch=8, device=device) as loader:
            assert sum(batch.num_rows for batch in loader) == 40


@GPU
def test_a_visible_gpu_is_left_alone(parquet_folder: Callable[..., Path]) -> None:
    program = (
        "import sys, torch, forebay as fb\n"
        "plan = fb.build_plan(fb.scan(sys.argv[1]))\n"
        "with fb.Loader(plan, fb.Transform(x=fb.Dense(['x0'])), global_batch=8) as loader:\n"
        "    for batch in loader: pass\n"
        "print(torch.cuda.is_initialized())"
    )
    command = [sys.executable, "-c", program, str(parquet_folder({"a.parquet": [40]}))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


@GPU
@pytest.mark.parametrize("to", ["loader", "batch"])
def test_on_a_gpu_reused_memory_spoils_no_batch(parquet_folder: Callable[..., Path], to: str) -> None:
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [4000] * 8})), seed=1)
    transform = fb.Transform(x=fb.Dense(["x0", "x1"]), id=fb.Label("id", dtype="int64"))

    def read(device: str | None) -> list[torch.Tensor]:
        found = []
        with fb.Loader(plan, transform, global_batch=256, device=device if to == "loader" else None) as loader:
            for batch in loader:
                moved = batch.to(device) if device and to == "batch" else batch
                if device:
                    torch.cuda._sleep(2_000_000)
                found.append(moved["id"] + 0)
                del batch, moved
        return [each.cpu() for each in found]

    assert all(torch.equal(one, other) for one, other in zip(read("cuda"), read(None), strict=True))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_copies_of_a_loader_equal_those_of_a_batch(rows: int) -> None:
    rng = np.random.default_rng(0)
    dtypes = ("?", "i1", "u1", "u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8")
    shapes: list[tuple[int, ...]] = [(rows,), (rows, 3), (rows, 2, 2)]
    arrays = {
        f"{dtype}{len(shape)}": torch.from_numpy(rng.integers(0, 2, shape).astype(dtype))
        for dtype in dtypes
        for shape in shapes
    }
    host = Batch(arrays, position=8, size=rows, num_rows=rows, weight=0.5)
    host.source = torch.arange(rows, dtype=torch.int16)
    for device in (torch.device("cpu"), torch.device("meta")):
        moved, expected = start_plain_copy(host, device), start_copy(host, device)
        assert [(name, each.dtype, each.shape, each.device) for name, each in moved.items()] == [
            (name, each.dtype, each.shape, each.device) for name, each in expected.items()
        ]
        assert (moved.position, moved.size, moved.num_rows, moved.weight) == (8, rows, rows, 0.5)
        assert moved.source.device == device
    copied = start_plain_copy(host, torch.device("cpu"))
    assert all(torch.equal(copied[name], host[name]) for name in host)
    assert all(rows == 0 or copied[name].data_ptr() != host[name].data_ptr() for name in host)
