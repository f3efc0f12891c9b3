"""The compiled loops: the only file that knows what compiles them.

Numba, because each of these passes over rows one by one and NumPy cannot: it gathers from one array but not from
hundreds (masking per block reached 0.35 GB/s where `gather` reaches 5), and a permutation by whole-array steps takes
four times as long as by rows. Everything here runs without the GIL, on addresses and indices that the caller vouches
for. Nothing lighter to install was found at par: it would have to be compiled code of our own, one wheel a platform.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int32, int64, njit, types, uint32, uint64, void
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_PREFETCHED_ROWS = 8
_LINE_BYTES = 64
_PACKED_ROWS = 256


def _generate_copy(_typing: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy between addresses (memcpy); a typed Numba loop would copy element by element."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = cgutils.voidptr_t
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2], 1)

    return types.void(target, source, num_bytes), generate


def _generate_prefetch(_typing: Any, address: Any) -> Any:
    """Begin to load the cache line at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, word = cgutils.voidptr_t, ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], signature)
        builder.call(prefetch, [builder.inttoptr(args[0], pointer), word(0), word(3), word(1)])  # to read, keep, data

    return types.void(address), generate


def _generate_words(_typing: Any, address: Any) -> Any:
    """The 32-bit words at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.int32)(address), generate


_copy: Any = intrinsic(_generate_copy)
_prefetch: Any = intrinsic(_generate_prefetch)
_words_at: Any = intrinsic(_generate_words)


def _gather(target: int, row_bytes: int, bases: NDArray[np.uint64], slot: Ints, row: Ints) -> None:
    """Copy row `row[i]` of the array at address `bases[slot[i]]` to row `i` of the array at address `target`.

    All arrays are C-contiguous with rows of `row_bytes` bytes. Rows lie anywhere, so that each would wait for memory:
    asking for the first two lines of a row eight rows ahead of its copy nearly halves the time.
    """
    for i in range(len(row)):
        if i + _PREFETCHED_ROWS < len(row):
            ahead = bases[slot[i + _PREFETCHED_ROWS]] + uint64(row[i + _PREFETCHED_ROWS] * row_bytes)
            _prefetch(ahead)
            if row_bytes > _LINE_BYTES:
                _prefetch(ahead + uint64(_LINE_BYTES))
        _copy(target + uint64(i * row_bytes), bases[slot[i]] + uint64(row[i] * row_bytes), uint64(row_bytes))


def _walk(words: Ints, bits: int, size: int, keys: NDArray[np.uint64]) -> None:
    """Replace each of `words`, below `size`, by where a keyed bijection on `bits` bits sends it, again until below.

    A round is xor, odd multiply and xorshift with one of `keys`, each invertible on `bits` bits, 32 at most.
    """
    mask, shift = uint32((1 << bits) - 1), uint32((bits + 1) // 2)
    for i in range(len(words)):
        word = uint32(words[i])
        while True:
            for key in keys:
                word = uint32(word ^ uint32(key & uint64(0xFFFFFFFF)))
                word = uint32(word * uint32((key >> uint64(32)) | uint64(1))) & mask
                word = uint32(word ^ (word >> shift))
            if word < size:
                break
        words[i] = int64(word)


def _locate(line: Ints, ends: Ints, block_of: Ints, shift_of: Ints, block: Ints, row: Ints) -> None:
    """For each place on a line of pieces that end at `ends`: the piece's block, and the place plus its shift."""
    for i in range(len(line)):
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) >> 1
            if ends[middle] > line[i]:
                high = middle
            else:
                low = middle + 1
        block[i] = block_of[low]
        row[i] = line[i] + shift_of[low]


def _pack_words(columns: NDArray[np.uint64], rows: int, packed: NDArray[np.int32]) -> None:
    """Interleave `columns`, the addresses of arrays of `rows` 32-bit words, into `packed`, rows * len(columns) long.

    Some rows of eight columns at a time, so that what is read and what is written stay in the nearest cache: half the
    time of Arrow's `RecordBatch.to_tensor`.
    """
    width, whole = len(columns), len(columns) // 8 * 8
    for start in range(0, rows, _PACKED_ROWS):
        stop = min(start + _PACKED_ROWS, rows)
        for left in range(0, whole, 8):
            a, b = _words_at(columns[left]), _words_at(columns[left + 1])
            c, d = _words_at(columns[left + 2]), _words_at(columns[left + 3])
            e, f = _words_at(columns[left + 4]), _words_at(columns[left + 5])
            g, h = _words_at(columns[left + 6]), _words_at(columns[left + 7])
            for row in range(start, stop):
                at = row * width + left
                packed[at], packed[at + 1], packed[at + 2], packed[at + 3] = a[row], b[row], c[row], d[row]
                packed[at + 4], packed[at + 5], packed[at + 6], packed[at + 7] = e[row], f[row], g[row], h[row]
        for left in range(whole, width):
            words = _words_at(columns[left])
            for row in range(start, stop):
                packed[row * width + left] = words[row]


# Compiled at import rather than at the first call: a child forked meanwhile would wait for the compiler for ever.
_compiled = {"nogil": True, "cache": True}
gather = njit(void(uint64, int64, uint64[::1], int64[::1], int64[::1]), **_compiled)(_gather)
walk = njit(void(int64[::1], int64, int64, uint64[::1]), **_compiled)(_walk)
locate = njit(void(int64[::1], int64[::1], int64[::1], int64[::1], int64[:], int64[:]), **_compiled)(_locate)
pack_words = njit(void(uint64[::1], int64, int32[::1]), **_compiled)(_pack_words)
