"""A state is written as `torch.save` does, by one copy."""

from __future__ import annotations

import gc
import io
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.serialization import config

from forebay.training.checkpoint import serialization
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.serialization import deserialize, num_bytes_of, serialize

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float64)


def some_tensor(draw: random.Random, known: list[torch.Tensor]) -> torch.Tensor:
    match draw.randrange(6):
        case 0 if known:
            return draw.choice(known)
        case 1 if known:
            return draw.choice(known).reshape(-1)[1:]
        case 2:
            return torch.empty(0, 3)
        case 3:
            return torch.tensor(draw.random())
        case 4:
            return nn.Parameter(torch.randn(3, 4))
        case _:
            values = torch.randn(draw.randrange(1, 9), draw.randrange(1, 400)).to(draw.choice(DTYPES))
            return values.t() if draw.random() < 0.5 else values


def some_state(draw: random.Random, known: list[torch.Tensor], depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 4 else 4)
    if kind < 3:
        known.append(some_tensor(draw, known))
        return known[-1]
    if kind == 3:
        return draw.choice([None, 3, 0.5, "text", True, (1, None, "MT19937")])
    inner = [some_state(draw, known, depth + 1) for _ in range(draw.randrange(5))]
    if kind < 6:
        pairs = [(draw.choice([index, f"name{index}"]), each) for index, each in enumerate(inner)]
        return OrderedDict(pairs) if kind == 5 else dict(pairs)
    return tuple(inner) if kind == 6 else inner


def saved_by_torch(state: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(state, stream)
    return stream.getvalue()


@pytest.fixture(params=range(12))
def states(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    torch.manual_seed(request.param)
    draw = random.Random(request.param)
    return ({"a": some_state(draw, known := []), "b": [some_state(draw, known)], "n": 1} for _ in range(4))


def test_the_bytes_are_those_of_torch(states: Iterator[dict[str, Any]]) -> None:
    buffer = ReusableBuffer()
    for state in states:
        buffer.reset()
        buffer.write(b"before it, another shard")
        begin = buffer.num_bytes
        serialize(state, buffer)
        assert bytes(buffer.written()[begin:]) == saved_by_torch(state)


def test_tensors_of_another_kind_are_saved_too() -> None:
    sparse, marked = torch.eye(3).to_sparse(), torch.ones(3)
    marked.note = torch.zeros(2)  # type: ignore[attr-defined]
    for state in ({"sparse": sparse, "x": torch.ones(2)}, {"list": [marked]}):
        buffer = ReusableBuffer()
        serialize(state, buffer)
        assert bytes(buffer.written()) == saved_by_torch(state)


def test_tensors_that_a_set_has_first_keep_their_values() -> None:
    ones, zeros = torch.ones(4), torch.zeros(4)
    buffer = ReusableBuffer()
    serialize({"first": {ones}, "zeros": zeros, "ones": ones}, buffer)
    found = deserialize(bytes(buffer.written()))
    assert found["ones"].tolist() == [1.0] * 4 and found["zeros"].tolist() == [0.0] * 4


def test_nested_tensors_are_saved() -> None:
    buffer = ReusableBuffer()
    serialize({"x": torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])}, buffer)
    assert [each.tolist() for each in deserialize(bytes(buffer.written()))["x"].unbind()] == [[1.0] * 2, [0.0] * 3]


def test_what_is_read_does_not_share_memory_with_the_bytes() -> None:
    buffer = ReusableBuffer()
    serialize({"x": torch.arange(1000.0)}, buffer)
    found = deserialize(buffer.written())
    buffer.reset()
    serialize({"x": torch.zeros(1000)}, buffer)
    assert torch.equal(found["x"], torch.arange(1000.0))


def test_the_size_is_known_before() -> None:
    state = {
        "model": OrderedDict(w=torch.ones(10), b=torch.ones(3, dtype=torch.int8)),
        "rng": [(1, 2, 3)],
        "n": [[], 1],
    }
    assert num_bytes_of(state) == 43


def test_many_threads_copy_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"x": torch.arange(100_000.0), "y": [torch.arange(7), torch.randn(3, 5)]}
    monkeypatch.setattr(serialization, "_PIECE_BYTES", 10_000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    buffer = ReusableBuffer()
    serialize(state, buffer)
    assert bytes(buffer.written()) == saved_by_torch(state)


class GpuRuntime:
    """Stands for CUDA on a machine without: it notes the GPU of the thread that calls it."""

    def __init__(self) -> None:
        self.of_thread = threading.local()
        self.calls: list[tuple[str, int]] = []

    def current(self) -> int:
        return getattr(self.of_thread, "gpu", 0)

    @contextmanager
    def device(self, gpu: int) -> Iterator[None]:
        before, self.of_thread.gpu = self.current(), gpu
        yield
        self.of_thread.gpu = before

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802 - CUDA's
        self.calls.append(("lock", self.current()))
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802 - CUDA's
        self.calls.append(("unlock", self.current()))


def test_pages_are_locked_and_unlocked_by_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread is on GPU 0, and would make each rank of a machine use that one."""
    runtime = GpuRuntime()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", runtime.current)
    monkeypatch.setattr(torch.cuda, "device", runtime.device)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    runtime.of_thread.gpu = 3
    buffer = ReusableBuffer()
    buffer.reserve(1000)
    lock = partial(serialization.lock_pages, buffer, serialization.gpu_of_thread())
    for _ in range(2):
        thread = threading.Thread(target=lock)
        thread.start()
        thread.join()
    assert runtime.calls == [("lock", 3)]
    buffer.reserve(5000)  # moves it
    lock()
    freeing = threading.Thread(target=[buffer].clear)
    del buffer, lock
    freeing.start()
    freeing.join()
    del thread, freeing
    gc.collect()
    assert runtime.calls == [("lock", 3), ("unlock", 3)] * 2
