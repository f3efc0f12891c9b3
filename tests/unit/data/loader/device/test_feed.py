"""A batch is not overwritten before its copy ended, and not read before it is complete."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
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
from forebay.errors import InvalidOption, TransformFailed
from forebay.runtime.memory.pool import BufferPool

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


@dataclass
class CountedDevice:
    """`DeviceCopies` in main memory that note the rows of each copy."""

    rows: list[int] = field(default_factory=list)

    def start(self, host: Batch) -> Batch:
        self.rows.append(len(host["id"]))
        moved = host.with_arrays({name: each.clone() for name, each in host.items()})
        moved.take_origin_of(host)
        return moved

    def hand_out(self, batch: Batch) -> Batch:
        return batch


@pytest.mark.parametrize(("global_batch", "are_joined"), [(128, True), (390, True), (100, True), (30, False)])
def test_small_batches_that_are_ahead_are_copied_together(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, global_batch: int, are_joined: bool
) -> None:
    """Also over the end of an epoch. Each part is aligned as a whole batch, and batches that are too small for it are
    left alone.
    """
    copies = CountedDevice()
    monkeypatch.setattr(pipeline, "open_copies", lambda _: copies)
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [4000] * 3, "b.parquet": [1111]})), seed=1)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]))

    def seen(wait_s: float, **options: Any) -> list[dict[str, Any]]:
        with fb.Loader(plan, transform, global_batch=global_batch, **options) as loader:
            found = []
            for _ in range(2):
                for batch in loader:
                    time.sleep(wait_s)
                    kept = {name: each.tolist() for name, each in batch.items()}
                    batch["x"].zero_()  # the others are not changed by it, nor is their count of changes
                    again = batch.on_host("x").tolist()
                    facts = {each: getattr(batch, each) for each in ("position", "size", "num_rows", "weight", "epoch")}
                    names = [str(each) for each in (batch.rows()[0], batch.rows()[-1])]
                    found.append(kept | facts | {"zeroed": again, "rows": names, "ends": batch.ends_epoch})
            return found

    joined = seen(0.002, device="meta")
    assert joined == seen(0.0)
    assert (max(copies.rows) > global_batch) is are_joined
    assert max(copies.rows) <= 8 * -(-global_batch // 128) * 128 and sum(copies.rows) >= 2 * plan.num_rows


@pytest.mark.parametrize("raises", [True, False])
def test_batches_before_a_row_group_that_fails_are_handed_out(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """Also if they could be copied together with later ones. It fails by itself, or beside those before it."""
    has_failed = threading.Event()

    def fails_late(batch: Any) -> dict[str, Any]:
        ids = batch.column("id").to_numpy()
        if ids[0] >= 3500:
            has_failed.set()
            if raises:
                raise ValueError("the last row group")
            return {"id": ids.astype("float32")}
        return {"id": ids}

    class Late(CountedDevice):
        def start(self, host: Batch) -> Batch:
            if sum(self.rows) > 2600:
                assert has_failed.wait(60)  # it is known before its rows are gathered
                time.sleep(0.02)
            return super().start(host)

    copies = Late()
    monkeypatch.setattr(pipeline, "open_copies", lambda _: copies)
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [500] * 8})), seed=1, lanes=1, shuffle=False)

    def taken(wait_s: float, **options: Any) -> int:
        with fb.Loader(plan, fb.Transform(fn=fails_late, version="1"), global_batch=50, **options) as loader:
            rows = 0
            with suppress(TransformFailed):
                for batch in loader:
                    time.sleep(wait_s)
                    rows += batch.num_rows
            return rows

    assert taken(0.005, device="meta") == taken(0.0) == 3500
    assert max(copies.rows) > 50


@pytest.mark.variation("ranks, sizes and places")
@pytest.mark.parametrize("seed", range(6))
def test_joined_batches_are_the_plain_ones_of_any_rank_from_any_place(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    copies = CountedDevice()
    monkeypatch.setattr(pipeline, "open_copies", lambda _: copies)
    rng = np.random.default_rng(seed)
    plan = fb.build_plan(fb.scan(parquet_folder({f"{k}.parquet": rng.integers(1, 1500, 4) for k in "abc"})), seed=seed)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]))
    size = int(rng.integers(1, 5))
    world = fb.World(rank=int(rng.integers(size)), size=size)
    options = {"global_batch": int(rng.integers(1, 500)) * size, "last": str(rng.choice(["balance", "drop"]))}
    skipped = int(rng.integers(0, 4))

    def seen(wait_s: float, **device: Any) -> list[Any]:
        with fb.Loader(plan, transform, world=world, **options, **device) as loader:
            cursor = None
            for _ in zip(range(skipped), loader, strict=False):
                cursor = loader.cursor
            if cursor is not None:
                loader.seek(cursor)
            found = []
            for _ in range(2):
                for batch in loader:
                    time.sleep(wait_s)
                    facts = [getattr(batch, each) for each in ("position", "size", "num_rows", "weight", "epoch")]
                    names = [str(each) for each in batch.rows()]
                    found.append(
                        [facts, names, batch.ends_epoch, {name: each.tolist() for name, each in batch.items()}]
                    )
            return found

    assert seen(0.001, device="meta") == seen(0.0)


def test_a_pickled_batch_has_its_own_rows_alone(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it shares the memory of those that were copied with it. A copy shares it as any other batch's does."""
    monkeypatch.setattr(pipeline, "open_copies", lambda _: CountedDevice())
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [4096] * 4})), seed=1)
    with fb.Loader(plan, fb.Transform(id=fb.Label("id", dtype="int64")), global_batch=128, device="meta") as loader:
        batches = []
        for batch in loader:
            time.sleep(0.001)
            batches.append(batch)
        joined = [each for each in batches if each["id"].untyped_storage().nbytes() > each["id"].nbytes]
        assert joined
        for each in joined[:3]:
            for again in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each)):
                assert again["id"].untyped_storage().nbytes() == each["id"].nbytes == 1024
                assert torch.equal(again["id"], each["id"]) and again.rows()[5] == each.rows()[5]
                assert (again.position, again.num_rows, again.weight) == (each.position, 128, each.weight)
            assert copy.copy(each)["id"].data_ptr() == each["id"].data_ptr()


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


@pytest.fixture
def data(parquet_folder: Callable[..., Path]) -> fb.Data:
    transform = fb.Transform(x=fb.Dense(["x0", "x1"]), label=fb.Label("clicked"))
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40, 24]})), lanes=4)
    return fb.Data(plan=plan, transform=transform, global_batch=16)


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=GPU)])
def test_copies_are_timed(data: fb.Data, device: str) -> None:
    with fb.Loader(data, device=device) as loader:
        batches = list(loader)
    assert [batch["x"].device.type for batch in batches] == [device] * 4
    assert 0 < loader.counters["copy_s"] < 60
    assert batches[-1].ends_epoch


def test_where_nothing_is_copied_nothing_is_counted(data: fb.Data) -> None:
    with fb.Loader(data, device="cpu") as loader:
        assert len(list(loader)) == 4
    assert "copy_s" not in loader.counters.as_dict()
