"""Compiled loops of the order of rows.

Permutations, the rows of lanes, and the rows of several datasets in turn.

A call from Python costs as much as some thousand rows here. So each loop does the rows of all lanes, or of all data
sets, in one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64, types, uint32, uint64, void
from numpy.typing import NDArray

from forebay.data.kernels.compiler import kernel, part
from forebay.data.kernels.intrinsics import items_at

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6
_SORTED_SIZE = 1024
_CHUNK_ROWS = 512
_COMPARED_PIECES = 32
_MERGED_ROWS = 4096
PERMUTE_WORDS = 3 * _SORTED_SIZE + 2
LANE_WORDS = _CHUNK_ROWS + PERMUTE_WORDS
"""Working memory of `permute` and `order_lanes`, in words of 8 bytes."""

_WORDS, _LONGS, _HALVES, _SHORTS = (np.zeros(1, kind) for kind in (np.uint64, np.int64, np.uint32, np.int32))


def _mix(word: Any) -> Any:
    """`forebay.data.plan.permute`'s mixer of 64 bits."""
    word = (word ^ (word >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return word ^ (word >> uint64(31))


def _derive_two(first: Any, second: Any) -> Any:
    """`forebay.data.plan.permute.derive` of two words."""
    return mix((mix(first + uint64(_GOLDEN)) ^ second) + uint64(_GOLDEN))


def _permute_few(start: int, size: int, key: Any, count: int, images: Any, memory: int) -> None:
    """`forebay.data.plan.permute.permutation`, `count` of it from position `start` on."""
    words, sorted_words = items_at(memory, _WORDS), items_at(memory + 8 * _SORTED_SIZE, _WORDS)
    ends = items_at(memory + 16 * _SORTED_SIZE, _LONGS)
    low_bits, shift = uint64(0), uint64(63)
    while low_bits < uint64(size - 1):
        low_bits, shift = (low_bits << uint64(1)) | uint64(1), shift - uint64(1)
    for i in range(int64(low_bits) + 2):
        ends[i] = 0
    # The words are spread evenly, so one pass over as many buckets nearly sorts them. NumPy's sort compiles in 1.3 s.
    for i in range(size):
        word = (mix(uint64(i) * uint64(_GOLDEN) + key) & ~low_bits) | uint64(i)
        words[i] = word
        ends[int64((word >> uint64(1)) >> shift) + 1] += 1
    for i in range(int64(low_bits) + 1):
        ends[i + 1] += ends[i]
    for i in range(size):
        word = words[i]
        bucket = int64((word >> uint64(1)) >> shift)
        at = ends[bucket]
        ends[bucket] = at + 1
        sorted_words[at] = word
    for i in range(1, size):
        word, at = sorted_words[i], i
        while at > 0 and sorted_words[at - 1] > word:
            sorted_words[at] = sorted_words[at - 1]
            at -= 1
        sorted_words[at] = word
    for i in range(count):
        images[i] = uint32(sorted_words[start + i] & low_bits)


def _permute(start: int, size: int, key: Any, count: int, target: int, memory: int) -> None:
    """Write the images of a range under a permutation.

    Of `count` numbers from `start` on, under a permutation of `range(size)` that depends only on `key`. They are
    uint32 at address `target`. `memory` is the address of `PERMUTE_WORDS` words.

    Up to 1,024 by sorting: a bijection on few bits mixes poorly, and sorting few numbers is cheap. Above, up to 2**32,
    it is a keyed bijection on the next power of two, applied until the value lies below `size`. A round is xor, odd
    multiply and xorshift, each invertible. Each round passes over all numbers, which the compiler does with vector
    instructions: a quarter of the time of all rounds number by number.
    """
    images = items_at(target, _HALVES)
    if size <= _SORTED_SIZE:
        permute_few(start, size, key, count, images, memory)
        return
    bits = 0
    while (size - 1) >> bits:
        bits += 1
    mask, shift = uint32((1 << bits) - 1), uint32((bits + 1) // 2)
    flips, factors = items_at(memory, _HALVES), items_at(memory + 4 * _ROUNDS, _HALVES)
    for number in range(_ROUNDS):
        word = derive_two(key, uint64(number))
        flips[number], factors[number] = uint32(word & uint64(0xFFFFFFFF)), uint32((word >> uint64(32)) | uint64(1))
    for i in range(count):
        images[i] = uint32(start + i)
    for number in range(_ROUNDS):
        flip, factor = flips[number], factors[number]
        for i in range(count):
            image = uint32(uint32(images[i] ^ flip) * factor) & mask
            images[i] = uint32(image ^ (image >> shift))
    for i in range(count):
        image = images[i]
        while image >= size:
            for number in range(_ROUNDS):
                image = uint32(uint32(image ^ flips[number]) * factors[number]) & mask
                image = uint32(image ^ (image >> shift))
        images[i] = image


def _first_above(values: Any, count: int, value: int) -> int:
    """Index of the first value above `value`.

    Of `count` ascending values. The last index if none is above.
    """
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        if values[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


def _find_pieces(line: Any, rows: int, ends: Any, low: int, count: int, found: Any) -> None:
    """Piece of each of `rows` positions on a line.

    Its first `count` pieces end at `ends[i] - low`.

    Few ends are compared with all positions one after the other, by vector instructions. A search of each position
    mispredicts every second branch.
    """
    if count > _COMPARED_PIECES:
        for i in range(rows):
            found[i] = first_above(ends, count + 1, low + int64(line[i]))
        return
    for i in range(rows):
        found[i] = 0
    for number in range(count):
        end = uint32(ends[number] - low)
        for i in range(rows):
            found[i] += line[i] >= end


def _order_lanes(lanes: Words, ranges: Ints, stride: int, block: Ints, row: Ints, memory: Words) -> None:
    """Write the block and row of lane rows.

    Rows `ranges[k, 0]` to `ranges[k, 1]` of each lane `k`.

    See `calls.order_lanes`. All lanes advance together, 512 rows at a time, so that positions next to each
    other are written while they are in the CPU cache.
    """
    at_line = int64(memory.ctypes.data)
    at_piece, at_rest = at_line + 4 * _CHUNK_ROWS, at_line + 8 * _CHUNK_ROWS
    line, piece = items_at(at_line, _HALVES), items_at(at_piece, _SHORTS)
    first, last = ranges[0, 0], ranges[0, 1]
    for k in range(len(ranges)):
        first, last = min(first, ranges[k, 0]), max(last, ranges[k, 1])
    for begin in range(first, last, _CHUNK_ROWS):
        for k in range(len(lanes)):
            ends, blocks = items_at(lanes[k, 0], row), items_at(lanes[k, 1], row)
            shifts, bounds = items_at(lanes[k, 2], row), items_at(lanes[k, 3], row)
            pieces, shuffles = int64(lanes[k, 4]), int64(lanes[k, 5])
            start, stop = max(begin, ranges[k, 0]), min(begin + _CHUNK_ROWS, ranges[k, 1])
            while start < stop:
                shuffle = first_above(bounds, shuffles + 1, start) - 1
                low, high = bounds[shuffle], bounds[shuffle + 1]
                count = min(high, stop) - start
                if lanes[k, 7]:
                    permute(start - low, high - low, derive_two(lanes[k, 6], uint64(shuffle)), count, at_line, at_rest)
                else:
                    for i in range(count):
                        line[i] = uint32(start - low + i)
                from_piece = first_above(ends, pieces, low)
                inner = first_above(ends, pieces, high - 1) - from_piece
                find_pieces(line, count, items_at(lanes[k, 0] + uint64(8 * from_piece), row), low, inner, piece)
                at = ranges[k, 2] + (start - ranges[k, 0]) * stride
                for i in range(count):
                    number = from_piece + piece[i]
                    block[at] = blocks[number]
                    row[at] = low + int64(line[i]) + shifts[number]
                    at += stride
                start += count


def _split(order: NDArray[np.int32], rest: NDArray[np.int32], due: int, cycle: int, steps: int) -> Any:
    """Partition the items of a node in `order`.

    The items of its left half go to the front, the items of the right half behind them.

    Each item adds `steps` to `due`, and takes `cycle` off it if it belongs to the left half. Returns the number of
    those, and `due`. Without branches: the halves alternate in patterns that the processor does not predict.
    """
    lefts = 0
    for i in range(len(order)):
        due += steps
        is_left = int64(due >= cycle)
        due -= cycle * is_left
        item = order[i]
        order[lefts] = item
        rest[i - lefts] = item
        lefts += is_left
    for i in range(len(order) - lefts):
        order[lefts + i] = rest[i]
    return lefts, due


def _divide(nodes: Ints, due: Ints, root: int, count: int, order: NDArray[np.int32], ends: Ints) -> None:
    """Divide the next `count` rows among the datasets.

    `order` becomes the rows of each, one dataset after the other.

    The rows of dataset `k` are those from `ends[0, k]` to `ends[1, k]`.
    """
    for source in range(ends.shape[1]):
        ends[0, source], ends[1, source] = 0, 0
    for i in range(count):
        order[i] = i
    rest, bounds = np.empty(count, np.int32), np.empty((len(nodes), 2), np.int64)
    if root < 0:
        ends[1, -1 - root] = count
        return
    bounds[root, 0], bounds[root, 1] = 0, count
    for node in range(len(nodes)):  # Each comes after the node that it is a half of.
        low, high = bounds[node, 0], bounds[node, 1]
        lefts, due[node] = split(order[low:high], rest, due[node], nodes[node, 0], nodes[node, 1])
        for half, start, stop in ((nodes[node, 2], low, low + lefts), (nodes[node, 3], low + lefts, high)):
            if half < 0:
                ends[0, -1 - half], ends[1, -1 - half] = start, stop
            else:
                bounds[half, 0], bounds[half, 1] = start, stop


def _merge(nodes: Ints, due: Ints, span: Ints, streams: Words, state: Ints, merged: Ints) -> int:
    """Merge rows into the order of a mixture.

    The rows of several datasets are each in their own order.

    See `calls.merge`. Each 4,096 positions are divided among the datasets first. A walk of the tree
    for each position mispredicts its branches, and takes twice as long.
    """
    written, num_sources = int64(span[3]), len(streams)
    order, rank = np.empty(_MERGED_ROWS, np.int32), np.empty(_MERGED_ROWS, np.int32)
    ends, stop = np.empty((2, num_sources), np.int64), np.empty(num_sources, np.int64)
    for start in range(span[0], span[1], _MERGED_ROWS):
        count = min(span[1] - start, _MERGED_ROWS)
        divide(nodes, due, span[2], count, order, ends)
        rank[:count] = 0
        for source in range(num_sources):
            numbers, low = items_at(streams[source, 0], merged), ends[0, source]
            own, index = state[0, source], state[1, source]
            state[0, source] += ends[1, source] - low
            while index < state[2, source] and numbers[index] < state[0, source]:
                row = order[low + numbers[index] - own]
                rank[row] = 1
                order[low + index - state[1, source]] = row
                index += 1
            stop[source] = index
        owned = 0
        for row in range(count):
            is_owned = rank[row]
            rank[row] = owned
            if is_owned:
                merged[0, written + owned] = start + row
                owned += 1
        for column in range(1, len(merged)):
            to = merged[column, written : written + owned]
            for source in range(num_sources):
                values, first = items_at(streams[source, column], merged), state[1, source]
                rows = order[ends[0, source] : ends[0, source] + stop[source] - first]
                for i in range(len(rows)):
                    to[uint64(rank[rows[i]])] = values[first + i]
        for source in range(num_sources):
            state[1, source] = stop[source]
        written += owned
    return int(written)


_ints, _halves = types.CPointer(int64), types.CPointer(uint32)
mix = part(uint64(uint64))(_mix)
derive_two = part(uint64(uint64, uint64))(_derive_two)
permute_few = part(void(int64, int64, uint64, int64, _halves, int64))(_permute_few)
permute = kernel(void(int64, int64, uint64, int64, int64, int64))(_permute)
first_above = part(int64(_ints, int64, int64))(_first_above)
find_pieces = part(void(_halves, int64, _ints, int64, int64, types.CPointer(int32)))(_find_pieces)
order_lanes = kernel(void(uint64[:, ::1], int64[:, ::1], int64, int64[::1], int64[::1], uint64[::1]))(_order_lanes)
split = part(types.UniTuple(int64, 2)(int32[::1], int32[::1], int64, int64, int64))(_split)
divide = part(void(int64[:, ::1], int64[::1], int64, int64, int32[::1], int64[:, ::1]))(_divide)
merge = kernel(int64(int64[:, ::1], int64[::1], int64[::1], uint64[:, ::1], int64[:, ::1], int64[:, ::1]))(_merge)
