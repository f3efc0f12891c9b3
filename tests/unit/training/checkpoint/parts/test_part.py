"""Parts of checkpoints.

Any region is read from chunks of any layout, and what is read is verified.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.encoded import BLOCK_BYTES, Bytes, CorruptCheckpoint, block_sums
from forebay.training.checkpoint.parts import part
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt, read_region, write_part
from forebay.training.checkpoint.parts.table import PartsTable, filled, scalar, scalar_tensor, table_text

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def written(chunks: list[dict[str, LocalChunk]]) -> tuple[PartsTable, dict[int, bytes]]:
    """Table and bytes of parts with these chunks."""
    receipts, contents = receipts_of(chunks)
    table = PartsTable.in_state({"parts": table_text(receipts)})
    assert table is not None
    return table, contents


def receipts_of(chunks: list[dict[str, LocalChunk]]) -> tuple[list[PartReceipt], dict[int, bytes]]:
    """Receipts and bytes of parts with these chunks."""
    receipts: list[PartReceipt] = []
    contents: dict[int, bytes] = {}
    for number, each in enumerate(chunks, 1):
        buffer = ReusableBuffer()
        receipts.append(write_part(number, each, buffer))
        contents[number] = bytes(buffer.written())
    return receipts, contents


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    is_by_column=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    region=st.tuples(*[st.integers(0, 9)] * 4),
)
def test_any_region_is_read_from_any_layout(
    rows: int, columns: int, cuts: list[int], *, is_by_column: bool, dtype: torch.dtype, region: tuple[int, ...]
) -> None:
    tensor = torch.arange(rows * columns).reshape(rows, columns).to(dtype)
    dim = int(is_by_column)
    edges = sorted({0, tensor.shape[dim], *(min(cut, tensor.shape[dim]) for cut in cuts)})
    chunks = []
    for start, stop in pairwise(edges):
        offsets = (0, start) if is_by_column else (start, 0)
        values = tensor.narrow(dim, start, stop - start)
        chunks.append({"t": LocalChunk(shape=(rows, columns), offsets=offsets, values=values)})
    table, contents = written(chunks)
    parts = table.open(lambda facts: [lambda begin, end: contents[facts.number][begin:end]])
    top, bottom = sorted(min(each, rows) for each in region[:2])
    left, right = sorted(min(each, columns) for each in region[2:])
    found = read_region(table.tensors["t"], ((top, left), (bottom - top, right - left)), parts)
    assert torch.equal(found, tensor[top:bottom, left:right])


def test_scalars_and_empty_chunks() -> None:
    chunks = {
        "scalar": LocalChunk(shape=(), offsets=(), values=torch.tensor(3.0)),
        "t": LocalChunk(shape=(2,), offsets=(0,), values=torch.ones(2)),
    }
    table, contents = written([chunks, {"t": LocalChunk(shape=(2,), offsets=(2,), values=torch.ones(0))}])
    parts = table.open(lambda facts: [lambda begin, end: contents[facts.number][begin:end]])
    assert read_region(table.tensors["scalar"], ((), ()), parts).item() == 3.0
    assert read_region(table.tensors["t"], ((0,), (2,)), parts).tolist() == [1.0, 1.0]
    assert contents[2] == b""
    as_containers = json.loads(table_text(receipts_of([chunks])[0]))
    assert PartsTable.in_state({"parts": as_containers}) == written([chunks])[0], "heads were written so before"


def test_the_table_follows_a_change_of_shape_or_place() -> None:
    """Contents of the same layout are computed once."""
    for stop, rows in ((2, 4), (2, 4), (3, 4), (3, 5), (2, 4)):
        tensor = torch.arange(rows)
        halves = [(0, tensor[:stop]), (stop, tensor[stop:])]
        table, contents = written(
            [{"t": LocalChunk(shape=(rows,), offsets=(start,), values=values)} for start, values in halves]
        )
        parts = table.open(lambda facts, contents=contents: [lambda begin, end: contents[facts.number][begin:end]])
        assert torch.equal(read_region(table.tensors["t"], ((0,), (rows,)), parts), tensor)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.float16])
def test_a_scalar_of_a_head_is_the_same_tensor_again(dtype: torch.dtype) -> None:
    for value in (torch.tensor(1.1).to(dtype), torch.tensor(float("nan")).to(dtype)):
        (found,) = filled({"step": scalar(value)}, {}.__getitem__).values()
        assert found.dtype == dtype and not found.shape
        torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)
    assert scalar_tensor(torch.tensor(1.0)) is None and scalar_tensor({"step": 1}) is None


@pytest.mark.parametrize("rest", [0, 1, BLOCK_BYTES - 1])
@pytest.mark.parametrize(
    ("device", "is_on_gpu"),
    [
        ("cpu", False),
        ("cpu", True),
        pytest.param("cuda", True, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
    ],
)
def test_checksums_are_those_of_blocks_however_tensors_lie_across_them(
    rest: int, device: str, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "_is_on_gpu", lambda _: is_on_gpu)
    sizes = [3, BLOCK_BYTES // 2, 2 * BLOCK_BYTES - 3, BLOCK_BYTES // 2 + rest - 4 * 15 - 1]
    tensors = [torch.randint(256, (size,), dtype=torch.uint8, device=device) for size in sizes]
    # Not in the order of memory; of one element; of none.
    tensors += [torch.arange(15.0, device=device).reshape(3, 5).T, torch.tensor(True, device=device), torch.ones(0)]
    buffer = ReusableBuffer()
    buffer.write(bytes(BLOCK_BYTES))
    chunks = {
        str(number): LocalChunk(shape=tuple(each.shape), offsets=(0,) * each.ndim, values=each)
        for number, each in enumerate(tensors)
    }
    receipt = write_part(1, chunks, buffer)
    assert buffer.written() == b"".join(each.cpu().contiguous().numpy().tobytes() for each in tensors)
    assert list(receipt.sums) == block_sums(buffer.written())
    assert len(receipt.sums) == 3 + bool(rest)
    assert write_part(1, chunks, buffer) == receipt


def test_only_the_blocks_that_are_needed_are_read_and_each_copy_is_tried() -> None:
    tensor = torch.arange(3 * BLOCK_BYTES, dtype=torch.uint8).reshape(3, BLOCK_BYTES)
    table, contents = written([{"t": LocalChunk(shape=(3, BLOCK_BYTES), offsets=(0, 0), values=tensor)}])
    flipped = bytearray(contents[1])
    flipped[BLOCK_BYTES + 7] ^= 1

    def lost(_begin: int, _end: int) -> Bytes:
        raise CorruptCheckpoint("the node is lost")

    def bad(begin: int, end: int) -> Bytes:
        return bytes(flipped[begin:end])

    def good(begin: int, end: int) -> Bytes:
        return contents[1][begin:end]

    row = ((1, 0), (1, BLOCK_BYTES))
    parts = table.open(lambda _: [lost, bad, good])
    assert torch.equal(read_region(table.tensors["t"], row, parts), tensor[1:2])
    assert parts[1].read_bytes == 2 * BLOCK_BYTES, "one block, of two copies"
    parts = table.open(lambda _: [bad])
    assert torch.equal(read_region(table.tensors["t"], ((2, 0), (1, 8)), parts), tensor[2:3, :8])
    for copies, reason in (([bad], "not what was written"), ([lost], "the node is lost"), ([], "no copy")):
        with pytest.raises(CorruptCheckpoint, match=f"part 1: .*{reason}"):
            read_region(table.tensors["t"], row, table.open(lambda _, copies=copies: copies))


def test_a_table_that_lacks_elements_is_corrupt() -> None:
    half = {"t": LocalChunk(shape=(4,), offsets=(0,), values=torch.ones(2))}
    with pytest.raises(CorruptCheckpoint, match=r"chunks of t do not fill the shape \[4\]"):
        written([half])
