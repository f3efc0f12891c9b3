"""Bloom filter of a node's blocks.

It has two bytes per block. Nodes exchange it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

_BITS_PER_BLOCK = 16
_NUM_PROBES = 4


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Bloom filter over block keys.

    `key in bloom_filter` is True for all of its keys, and for 1 in 400 others.

    Web caches exchange the same filter (Summary Cache, Fan et al., SIGCOMM 1998). A false positive costs one useless
    request. Keys are hashes already, so a piece of the key is the position of a bit.
    """

    bits: bytes

    @classmethod
    def of(cls, keys: Collection[str]) -> BloomFilter:
        """Build the filter of `keys`, each 40 hex digits.

        Equal for equal keys in any order.
        """
        bits = np.zeros(_BITS_PER_BLOCK * len(keys), np.bool_)
        if keys:
            words = np.frombuffer(bytes.fromhex("".join(keys)), ">u4").reshape(len(keys), -1)
            bits[words[:, :_NUM_PROBES] % bits.size] = True
        return cls(np.packbits(bits, bitorder="little").tobytes())

    def __contains__(self, key: str) -> bool:
        num_bits = 8 * len(self.bits)
        if not num_bits:
            return False
        positions = (int(key[8 * word : 8 * word + 8], 16) % num_bits for word in range(_NUM_PROBES))
        return all(self.bits[bit >> 3] >> (bit & 7) & 1 for bit in positions)
