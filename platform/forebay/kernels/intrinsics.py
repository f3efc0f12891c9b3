"""Machine instructions that the compiled loops use on addresses: copies, zeros, prefetches and typed items."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _generate_copy(_typing: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy between addresses (memcpy). A typed Numba loop would copy element by element."""

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
    """Items at an address, of the item type of the array `like`."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_data_type(like.dtype).as_pointer())

    return types.CPointer(like.dtype)(address, like), generate


def _generate_zeros(_typing: Any, address: Any, num_bytes: Any) -> Any:
    """Zero the bytes at an address (memset)."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        cgutils.memset(builder, builder.inttoptr(args[0], cgutils.voidptr_t), args[1], 0)

    return types.void(address, num_bytes), generate


copy: Any = intrinsic(_generate_copy)
prefetch: Any = intrinsic(_generate_prefetch)
items_at: Any = intrinsic(_generate_items)
zero: Any = intrinsic(_generate_zeros)
