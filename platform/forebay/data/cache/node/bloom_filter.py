"""Bloom filter of a node's blocks.

It has four bytes per block. Nodes exchange it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

_BITS_PER_BLOCK = 32
_STRIDES = 4
"""Bits of each of two pairs of words of a key: eight in all."""


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Bloom filter over block keys.

    `key in bloom_filter` is True for all of its keys, and for 1 in 150,000 others. A node looks into the filters of all
    others: with 1,000 nodes and 1 in 400, two of three lookups had a wrong holder, and 1 block in 7 was read again.

    Web caches exchange the same filter (Summary Cache, Fan et al., SIGCOMM 1998). A false positive costs one useless
    request. Keys are hashes already, so pieces of the key give the positions of bits (Kirsch and Mitzenmacher, 2006).
    """

    bits: bytes

    @classmethod
    def of(cls, keys: Collection[str]) -> BloomFilter:
        """Build the filter of `keys`, each 40 hex digits.

        Equal for equal keys in any order.
        """
        bits = np.zeros(_BITS_PER_BLOCK * len(keys), np.bool_)
        if keys:
            words = np.frombuffer(bytes.fromhex("".join(keys)), ">u4").reshape(len(keys), -1).astype(np.int64)
            steps = np.arange(_STRIDES)
            for first, stride in ((0, 1), (2, 3)):
                bits[(words[:, first, None] + steps * words[:, stride, None]) % bits.size] = True
        return cls(np.packbits(bits, bitorder="little").tobytes())

    def __contains__(self, key: str) -> bool:
        return self.has(probes_of(key))

    def has(self, probes: tuple[int, ...]) -> bool:
        """Whether the filter contains the key with these probes."""
        bits, num_bits = self.bits, 8 * len(self.bits)
        if not num_bits:
            return False
        for probe in probes:  # nearly always one of the first two decides, and a lookup asks a thousand filters
            bit = probe % num_bits
            if not bits[bit >> 3] >> (bit & 7) & 1:
                return False
        return True


def probes_of(key: str) -> tuple[int, ...]:
    """Positions of a key's bits, before the modulus."""
    words = [int(key[8 * word : 8 * word + 8], 16) for word in range(4)]
    return tuple(words[first] + step * words[first + 1] for step in range(_STRIDES) for first in (0, 2))
