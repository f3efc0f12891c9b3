"""Start values of table rows.

A pure function of seed, table and id, independent of the world size.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.data.plan.permute import derive, mix_words

_CHUNK_ROWS = 1 << 14
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def start_rows(ids: NDArray[np.int64], dim: int, *, seed: int, table: str, scale: float) -> Tensor:
    """Return float32 [ids, dim], uniform from `-scale` to `scale`."""
    name = int.from_bytes(hashlib.sha256(table.encode()).digest()[:8], "little")
    key = np.uint64(derive(seed, name))
    found = np.empty((len(ids), dim), np.float32)
    columns = np.arange(dim, dtype=np.uint64)
    for begin in range(0, len(ids), _CHUNK_ROWS):  # In pieces that stay in the processor's cache.
        part = ids[begin : begin + _CHUNK_ROWS].astype(np.uint64)
        words = mix_words((part[:, None] * np.uint64(dim) + columns) * _GOLDEN + key)
        chunk = found[begin : begin + _CHUNK_ROWS]
        np.multiply(words >> np.uint64(40), np.float32(2.0**-23), out=chunk, casting="unsafe")
        chunk -= np.float32(1)
        chunk *= np.float32(scale)
    return torch.from_numpy(found)
