"""Damage to any file: bits, ranges, lengths. Each takes a generator and the content, and returns other content."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Damage = Callable[[np.random.Generator, bytes], bytes]

WIDE = (
    0,
    1,
    127,
    128,
    255,
    256,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
)


def span(rng: np.random.Generator, content: bytes, most: int = 200) -> tuple[int, int]:
    """Begin and end of a range. Short ranges are as likely as long ones."""
    start = int(rng.integers(len(content)))
    length = int(2 ** rng.uniform(0, np.log2(most)))
    return start, min(start + length, len(content))


def flip_a_bit(rng: np.random.Generator, content: bytes) -> bytes:
    return flip(rng, content, 1)


def flip_bits(rng: np.random.Generator, content: bytes) -> bytes:
    return flip(rng, content, int(rng.integers(2, 33)))


def flip(rng: np.random.Generator, content: bytes, bits: int) -> bytes:
    found = bytearray(content)
    for _ in range(bits):
        found[int(rng.integers(len(found)))] ^= 1 << int(rng.integers(8))
    return bytes(found)


def truncate(rng: np.random.Generator, content: bytes) -> bytes:
    kept = len(content) - span(rng, content, len(content))[1] if rng.random() < 0.5 else int(rng.integers(len(content)))
    return content[: max(kept, 0)]


def zero_a_range(rng: np.random.Generator, content: bytes) -> bytes:
    start, stop = span(rng, content, 4096)
    return content[:start] + bytes(stop - start) + content[stop:]


def scramble_a_range(rng: np.random.Generator, content: bytes) -> bytes:
    start, stop = span(rng, content)
    return content[:start] + rng.bytes(stop - start) + content[stop:]


def cut_a_range_out(rng: np.random.Generator, content: bytes) -> bytes:
    start, stop = span(rng, content)
    return content[:start] + content[stop:]


def insert_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    start, stop = span(rng, content)
    return content[:start] + rng.bytes(stop - start) + content[start:]


def splice(rng: np.random.Generator, content: bytes) -> bytes:
    """Copy a range over another range of the same file."""
    start, stop = span(rng, content, 1000)
    to = int(rng.integers(len(content)))
    return content[:to] + content[start:stop] + content[to + stop - start :]


def overwrite_a_length(rng: np.random.Generator, content: bytes) -> bytes:
    """Replace 1, 2, 4 or 8 bytes with a number that is probably wrong."""
    width = int(rng.choice([1, 2, 4, 8]))
    start = int(rng.integers(max(len(content) - width, 1)))
    number = int(rng.choice(np.array(WIDE, dtype=np.uint64))) & ((1 << 8 * width) - 1)
    return content[:start] + number.to_bytes(width, "little") + content[start + width :]


def extend(rng: np.random.Generator, content: bytes) -> bytes:
    return content + (rng.bytes(int(rng.integers(1, 100))) if rng.random() < 0.5 else content)


ALL: tuple[Damage, ...] = (
    flip_a_bit,
    flip_bits,
    truncate,
    zero_a_range,
    scramble_a_range,
    cut_a_range_out,
    insert_bytes,
    splice,
    overwrite_a_length,
    extend,
)
