"""Checks of columns that Arrow decoded.

They find what Arrow (26.0.1) returns without an error: a list that ends at a page without values, and a time of 96 bits
that wraps around, because it is before 1677 or after 2262.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.parquet.fetch import Pages
from forebay.data.parquet.parquet_columns import is_list_like, num_leaves

_SECOND = 10**9


class TimeOutOfRange(ValueError):
    """A time of 96 bits that does not fit nanoseconds.

    Attributes:
        column: Name of its column.
    """

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


@dataclass(frozen=True, slots=True)
class LeafValues:
    """Values of a column chunk, in the order of the file.

    `rest` counts its entries without a value: one for each list above that is null or empty.
    """

    leaf: int
    values: pa.Array
    rest: int


def check_num_values(table: pa.Table, pages: Pages) -> None:
    """Compare the number of values in lists with the footer.

    Raises `pa.ArrowInvalid` if they differ.
    """
    there = pages.footer.columns
    nested = [name for name in table.column_names if there.has_lists(name)]
    if not nested:
        return
    stated = dict(zip(pages.leaves, pages.num_values.tolist(), strict=True))
    found: dict[int, int] = {}
    for name in nested:
        for each in _leaf_values(table, name, pages):
            found[each.leaf] = found.get(each.leaf, 0) + len(each.values) + each.rest
    for leaf, count in found.items():
        if count != stated.get(leaf, count):
            raise pa.ArrowInvalid(
                f"column {there.path(leaf)!r} has {count} values in its pages, but {stated[leaf]} in its footer; it is "
                "damaged, or has a page without values, at which Arrow stops"
            )


def check_times(table: pa.Table, seconds: pa.Table, pages: Pages) -> None:
    """Compare times of 96 bits in nanoseconds with `seconds`.

    These are the same columns, decoded to seconds, which cannot wrap around. Raises `TimeOutOfRange`.
    """
    leaves = pages.footer.columns.times_of_96_bits
    for name in seconds.column_names:
        pairs = zip(_leaf_values(table, name, pages), _leaf_values(seconds, name, pages), strict=True)
        for wide, short in ((wide, short) for wide, short in pairs if wide.leaf in leaves):
            exact = _ticks(short.values)
            wrong = np.flatnonzero(_ticks(wide.values) // _SECOND != exact)
            if len(wrong):
                first = int(wrong[0])
                is_row = not pa.types.is_nested(table.schema.field(name).type)
                raise TimeOutOfRange(
                    name,
                    f"column {pages.footer.columns.path(wide.leaf)!r} has the time {_text(int(exact[first]))} in "
                    f"{'row' if is_row else 'value'} {first}",
                )


def _leaf_values(table: pa.Table, name: str, pages: Pages) -> Iterator[LeafValues]:
    there = pages.footer.columns
    start = there.leaf_starts.get(name)
    if start is not None:
        column = table[name]
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
            yield from _below(there.schema.field(name).type, chunk, start, 0)


def _below(kind: pa.DataType, array: pa.Array, leaf: int, rest: int) -> Iterator[LeafValues]:
    """Values below `array`.

    Its type may lack fields of `kind`, the type in the file.
    """
    if isinstance(kind, pa.BaseExtensionType):
        yield from _below(kind.storage_type, array.storage, leaf, rest)
    elif pa.types.is_struct(kind):
        for field in kind:
            index = array.type.get_field_index(field.name)
            if index >= 0:
                yield from _below(field.type, array.field(index), leaf, rest)
            leaf += num_leaves(field.type)
    elif pa.types.is_map(kind):
        offsets = array.offsets.to_numpy()
        rest += len(array) - int(np.count_nonzero(np.diff(offsets)))
        own = slice(int(offsets[0]), int(offsets[-1]))
        yield from _below(kind.key_type, array.keys[own], leaf, rest)
        yield from _below(kind.item_type, array.items[own], leaf + num_leaves(kind.key_type), rest)
    elif is_list_like(kind):
        full = pc.sum(pc.greater(pc.list_value_length(array), 0)).as_py() or 0
        yield from _below(kind.value_type, array.flatten(), leaf, rest + len(array) - full)
    else:
        yield LeafValues(leaf, array, rest)


def _ticks(array: pa.Array) -> NDArray[np.int64]:
    """Times as integers. 0 for a null."""
    ticks: NDArray[np.int64] = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
    return ticks


def _text(seconds: int) -> str:
    return str(np.datetime64(seconds, "s"))
