"""A batch is not overwritten before its copy ended, and not read before it is complete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.data.loader.device.fake_device import INCOMPLETE, FakeDevice

import forebay as fb
from forebay.data.loader.batch import Batch
from forebay.data.loader.device.feed import DeviceFeed
from forebay.data.loader.device.in_flight import CopyRing
from forebay.errors import InvalidOption
from forebay.runtime.memory.buffers import BufferPool
from forebay.runtime.metrics import Counters

ROWS = 4
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Gathered:
    """`HostBatches` gathered into reused buffers, as the loader's are. `late[i]`: batch i is not finished early."""

    def __init__(self, num_batches: int, late: list[bool]) -> None:
        self._num_batches, self._late, self._made = num_batches, late, 0
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

    def get_if_ready(self) -> Batch | None:
        return None if self._late and self._late[self._made % len(self._late)] else self.get()


def expected(number: int) -> list[int]:
    return list(range(number * ROWS, number * ROWS + ROWS))


def train(device: FakeDevice, host: Gathered, ring: CopyRing, *, work: float, waits: bool) -> None:
    """Work on each batch; the host waits for it, or runs ahead."""
    feed = DeviceFeed(host, device, Counters(), ring)
    while (batch := feed.next()) is not None:
        done = device.work(batch, work)
        device.advance_to(done.at if waits else device.now + 0.1)
    device.advance_to(1e9)


TIMES = st.lists(st.floats(0.01, 30), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    copy_times=TIMES, engines=st.integers(1, 3), slots=st.integers(1, 4), work=st.floats(0, 9),
    waits=st.booleans(), late=st.lists(st.booleans(), max_size=4),
)  # fmt: skip
def test_every_batch_is_read_whole_and_in_order(
    copy_times: list[float], engines: int, slots: int, work: float, waits: bool, late: list[bool]
) -> None:
    device, host = FakeDevice(copy_times, engines), Gathered(24, late)
    train(device, host, CopyRing(slots), work=work, waits=waits)
    assert device.results == [expected(number) for number in range(24)]
    assert len(host.addresses) <= slots + 2, "buffers are reused, and the host never runs far ahead"


def test_the_fake_device_shows_memory_that_is_reused_too_early() -> None:
    class Forgetful(CopyRing):
        def hold(self, event: object, host: object) -> None:
            """Hold nothing."""

    device = FakeDevice([5.0])
    train(device, Gathered(8, []), Forgetful(), work=1, waits=False)
    assert device.results != [expected(number) for number in range(8)]


def test_the_fake_device_shows_a_batch_that_is_read_too_early() -> None:
    class Hasty(FakeDevice):
        def hand_out(self, batch: Batch) -> Batch:
            return batch

    device = Hasty([5.0])
    train(device, Gathered(8, []), CopyRing(), work=1, waits=False)
    assert device.results[0] == [INCOMPLETE] * ROWS


def test_copies_run_while_the_trainer_waits_for_its_step() -> None:
    device = FakeDevice([5.0])
    feed = DeviceFeed(Gathered(100, []), device, Counters())
    while (batch := feed.next()) is not None:
        device.work(batch, 10.0).synchronize()
    assert device.now == 5 + 100 * 10, "only the first copy is waited for"
    assert device.busy / device.now > 0.99


def test_where_data_is_late_a_batch_is_handed_out_before_the_next_is_finished() -> None:
    device, host = FakeDevice([1.0]), Gathered(3, [True])
    feed = DeviceFeed(host, device, Counters())
    assert feed.next() is not None
    assert len(host.addresses) == 1


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
