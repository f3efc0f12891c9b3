"""Hashes that turn values into ids.

They are part of the cache layout. Changing one bit needs a new `LAYOUT_VERSION`, and a golden test pins them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import xxhash

Hashes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]
Ids: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def column_salt(column: str) -> int:
    """XXH64 of the column's name.

    It keeps equal values of two columns from sharing an id.
    """
    return xxhash.xxh64_intdigest(column.encode())


def hash_integers(values: Hashes, salt: int) -> Hashes:
    """SplitMix64 of `values + salt`.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mixed = values + np.uint64((salt + _GAMMA) & _MASK)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_texts(texts: Iterable[bytes], salt: int, count: int) -> Hashes:
    """XXH64 of each byte string, seeded with `salt`.

    `count` is their number.
    """
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(text, salt) for text in texts), dtype=np.uint64, count=count)


def bucket_ids(hashes: Hashes, buckets: int) -> Ids:
    """Map hashes to ids in [1, buckets).

    `1 + hash % (buckets - 1)`. 0 is kept for null.
    """
    modulus = np.uint64(buckets - 1)
    # NumPy divides by a scalar with SIMD multiplications; its remainder does one hardware division per value.
    ids = hashes - (hashes // modulus) * modulus
    ids += np.uint64(1)
    return ids.view(np.int64)
