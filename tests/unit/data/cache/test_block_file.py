"""Block files: every block reads back equal, and hostile or damaged files raise `BadBlock`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forebay.data.cache import block_file
from forebay.data.cache.block_file import BadBlock, block_file_bytes, map_block, read_header, write_block
from forebay.data.transform.block import ATTACHED, Block

KEY = "ab" * 20
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
no_fixture_check = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def stored(path: Path, block: Block, key: str = KEY) -> Path:
    with path.open("wb") as file:
        write_block(file, block, key, "clicks-1")
    return path


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    rows = draw(st.integers(0, 20))
    arrays = {}
    names = st.text(min_size=1, max_size=8).filter(lambda name: not name.startswith(ATTACHED))
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        shape = (rows, *draw(st.lists(st.integers(1, 4), max_size=2)))
        arrays[name] = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), shape))
    return Block.of(arrays)


@no_fixture_check
@given(block=blocks())
def test_round_trip_is_exact(tmp_path: Path, block: Block) -> None:
    path = stored(tmp_path / "block", block)
    assert path.stat().st_size == block_file_bytes(block, KEY, "clicks-1")
    mapped = map_block(path, KEY, verify=True)
    assert mapped.rows == block.rows
    assert mapped.schema == block.schema
    for name, array in block.arrays.items():
        assert mapped.arrays[name].tobytes() == array.tobytes()
        assert not mapped.arrays[name].flags.writeable
    assert read_header(path).dataset == "clicks-1"


def test_arrays_are_aligned_and_not_copied(tmp_path: Path, block_of: Callable[..., Block]) -> None:
    mapped = map_block(stored(tmp_path / "block", block_of(rows=33)), KEY, verify=True)
    for array in mapped.arrays.values():
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous and not array.flags.owndata


def test_same_block_makes_same_bytes(tmp_path: Path, block_of: Callable[..., Block]) -> None:
    first, second = stored(tmp_path / "1", block_of(5)), stored(tmp_path / "2", block_of(5))
    assert first.read_bytes() == second.read_bytes()


def test_block_outlives_its_file(tmp_path: Path, block_of: Callable[..., Block]) -> None:
    path = stored(tmp_path / "block", block_of())
    ids = map_block(path, KEY, verify=True).arrays["ids"]
    path.unlink()
    np.testing.assert_array_equal(ids, block_of().arrays["ids"])


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = stored(tmp_path / "block", Block.of({"x": np.arange(3, dtype=np.uint8)}))
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        with pytest.raises(BadBlock):
            map_block(path, KEY, verify=True)


def test_only_the_file_that_was_verified_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may replace it in between."""
    path = stored(tmp_path / "block", Block.of({"x": np.arange(3000)}))
    bad = bytearray(path.read_bytes())
    bad[-1000] ^= 1
    verify = block_file._verify

    def replaced(file: Any, size: int) -> None:
        verify(file, size)
        (tmp_path / "new").write_bytes(bad)
        (tmp_path / "new").rename(path)

    monkeypatch.setattr(block_file, "_verify", replaced)
    with pytest.raises(BadBlock, match=r"block was replaced while it was verified"):
        map_block(path, KEY, verify=True)


def test_every_truncation_and_addition_is_found_without_reading_the_arrays(tmp_path: Path) -> None:
    path = stored(tmp_path / "block", Block.of({"x": np.arange(3, dtype=np.uint8)}))
    good = path.read_bytes()
    for bad in [*(good[:length] for length in range(len(good))), good + b"\0", good + good]:
        path.write_bytes(bad)
        with pytest.raises(BadBlock):
            map_block(path, KEY, verify=False)


def test_block_of_another_key_or_version_is_refused(tmp_path: Path, block_of: Callable[..., Block]) -> None:
    path = stored(tmp_path / "block", block_of(), key="cd" * 20)
    with pytest.raises(BadBlock, match="holds block"):
        map_block(path, KEY, verify=False)
    other = bytearray(path.read_bytes())
    other[7] += 1
    path.write_bytes(other)
    with pytest.raises(BadBlock, match="version"):
        map_block(path, "cd" * 20, verify=False)


def test_missing_file_is_no_bad_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_block(tmp_path / "none", KEY, verify=False)


def hostile_file(header: bytes, arrays: bytes, length: int | None = None) -> bytes:
    """File with the given header and a valid checksum."""
    front = b"FOREBAY\x01" + (len(header) if length is None else length).to_bytes(8, "little") + header
    body = front + bytes(-len(front) % 64) + arrays
    return body + xxhash.xxh3_128(body).digest()


lengths: st.SearchStrategy[Any] = st.one_of(
    st.integers(-2, 9), st.sampled_from([2**31, 2**61, 2**62, 2**63, 2**200, True, None, 1.5, "8", []])
)
hostile_arrays = st.lists(
    st.one_of(
        st.tuples(
            st.one_of(st.text(max_size=3), st.none()),
            st.sampled_from(["<f4", "|u1", "<i8", "|O", "<U9", ">f4", "object", "V8", "", None, ["<f4"], "m8", "<f16"]),
            st.one_of(st.lists(lengths, max_size=40), st.none(), st.integers()),
        ),
        st.none(),
        st.text(max_size=3),
        st.lists(st.integers(), max_size=4),
    ),
    max_size=4,
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
hostile_headers = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"key": st.just(KEY), "dataset": st.text(max_size=3), "rows": lengths, "arrays": hostile_arrays}
    )
    .map(json.dumps)
    .map(str.encode),
)


@no_fixture_check
@given(header=hostile_headers, arrays=st.binary(max_size=200), length=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_hostile_header_is_refused_or_harmless(
    tmp_path: Path, header: bytes, arrays: bytes, length: int | None
) -> None:
    path = tmp_path / "block"
    content = hostile_file(header, arrays, length)
    path.write_bytes(content)
    for verify in (True, False):
        try:
            block = map_block(path, KEY, verify=verify)
        except BadBlock:
            continue
        # Accepted arrays lie within the file, so reading all of them is safe.
        assert sum(len(array.tobytes()) for array in block.arrays.values()) <= len(content)


@pytest.mark.parametrize(
    "shape",
    [[0, 2**61, 2**61], [2**61, 8], [2**62, 0], [-1], [8, -8], [1] * 70, [2**200], [True]],
)
def test_sizes_that_overflow_are_refused(tmp_path: Path, shape: list[int]) -> None:
    header = {"key": KEY, "dataset": "d", "rows": shape[0], "arrays": [["x", "<f8", shape]]}
    path = tmp_path / "block"
    path.write_bytes(hostile_file(json.dumps(header).encode(), b""))
    with pytest.raises(BadBlock):
        map_block(path, KEY, verify=True)


def test_deeply_nested_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(hostile_file(b"[" * 200_000, b""))
    with pytest.raises(BadBlock):
        map_block(path, KEY, verify=True)


@pytest.mark.parametrize("rows", [3, 100_000])
def test_a_block_in_memory_holds_no_descriptor(rows: int) -> None:
    """An epoch without a cache holds some 1,000 blocks, and a process may have 1,024 descriptors."""
    block = Block.of({"x": np.arange(rows, dtype=np.int64)})
    with os.fdopen(os.memfd_create("block"), "wb") as file:
        write_block(file, block, "", "")
        file.flush()
        before = set(Path("/proc/self/fd").iterdir())
        found = block_file.map_descriptor(os.dup(file.fileno()))
        assert set(Path("/proc/self/fd").iterdir()) <= before
    assert np.array_equal(found.arrays["x"], block.arrays["x"])
