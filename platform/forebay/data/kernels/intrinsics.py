"""Machine instructions of the compiled loops.

Copies, zeros, prefetches, typed items, transposes, counted bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_SQUARE = 4


def _generate_copy(_typing: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy between addresses (memcpy).

    A typed Numba loop would copy element by element.
    """

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


def _generate_items(_typing: Any, address: Any, like: Any) -> Any:
    """Items at an address, typed like the array `like`."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_data_type(like.dtype).as_pointer())

    return types.CPointer(like.dtype)(address, like), generate


def _generate_zeros(_typing: Any, address: Any, num_bytes: Any) -> Any:
    """Zero the bytes at an address (memset)."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        cgutils.memset(builder, builder.inttoptr(args[0], cgutils.voidptr_t), args[1], 0)

    return types.void(address, num_bytes), generate


def _generate_transpose(_typing: Any, columns: Any, offset: Any, target: Any, step: Any, like: Any) -> Any:
    """Transpose four items of four columns.

    They become four rows, of the item type of the array `like`.

    `columns` is the address of the four columns' addresses. Their items begin `offset` bytes further. Rows begin `step`
    bytes apart, from `target` on.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word, lane = ir.IntType(64), ir.IntType(32)
        item_bytes = like.dtype.bitwidth // 8
        vector = ir.VectorType(context.get_data_type(like.dtype), _SQUARE).as_pointer()
        first = builder.inttoptr(args[0], word.as_pointer())
        starts = [builder.load(builder.gep(first, [word(i)])) for i in range(_SQUARE)]
        lines = [
            builder.load(builder.inttoptr(builder.add(start, args[1]), vector), align=item_bytes) for start in starts
        ]
        for far in (1, 2):  # exchanges items with the line that is `far` lines away
            for i in (i for i in range(_SQUARE) if not i & far):
                upper, lower = lines[i], lines[i | far]
                near = [j ^ far | _SQUARE if j & far else j for j in range(_SQUARE)]
                rest = [j | _SQUARE if j & far else j | far for j in range(_SQUARE)]
                for line, order in ((i, near), (i | far, rest)):
                    mask = ir.Constant(ir.VectorType(lane, _SQUARE), [lane(index) for index in order])
                    lines[line] = builder.shuffle_vector(upper, lower, mask)
        for i, line in enumerate(lines):
            row = builder.add(args[2], builder.mul(args[3], word(i)))
            builder.store(line, builder.inttoptr(row, vector), align=item_bytes)

    return types.void(columns, offset, target, step, like), generate


def _generate_ones(_typing: Any, word: Any) -> Any:
    """Number of 1 bits of a uint64, as uint64."""
    return word(word), lambda _context, builder, _signature, args: builder.ctpop(args[0])


def _generate_lowest(_typing: Any, word: Any) -> Any:
    """Index of the lowest 1 bit of a uint64.

    As uint64. 64 without one.
    """
    return word(word), lambda _context, builder, _signature, args: builder.cttz(args[0], ir.IntType(1)(0))


copy: Any = intrinsic(_generate_copy)
prefetch: Any = intrinsic(_generate_prefetch)
items_at: Any = intrinsic(_generate_items)
lowest_one: Any = intrinsic(_generate_lowest)
ones_of: Any = intrinsic(_generate_ones)
transpose: Any = intrinsic(_generate_transpose)
zero: Any = intrinsic(_generate_zeros)
