"""Weighted and class-balanced sampling of a plan's rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.parquet.column_casts import comparable
from forebay.data.parquet.column_paths import column_at, operand_text
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.order import BlockSpan, Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.data.plan.plan import Plan
from forebay.data.plan.row_sampling import RowSampling
from forebay.errors import InvalidOption, WrongType, validate_type, whole_number

SAMPLED_VERSION = 1
"""Part of the id of every sampled plan. Raised whenever any row would come at another position."""
_SHARE_UNITS = 1 << 30
_MOST_ROWS = (1 << 31) - 1


class Sampled(Order):
    """Rows of a plan, sampled by weight or class.

    An epoch has about `rows * weight / sum of weights` copies of each row.

    ```python
    balanced = fb.Sampled(fb.build_plan(manifest), balance="label")
    print(balanced.class_rows)  # {0: 50000.0, 1: 50000.0}
    ```

    The number of copies of a row is its expected number, rounded up or down at random, anew in each epoch. So it is a
    pure function of the plan's seed and the epoch, and every law of a plan holds. Copies are shuffled as the plan
    shuffles rows. Reads one column of all row groups when it is built, and keeps a code of 1 to 4 bytes per row.

    Args:
        plan: Order of the rows, from `build_plan`.
        weight: Column with the weight of each row: finite numbers from 0. A row of weight 0 never comes. May be a path
            into a struct, such as `user.weight`.
        balance: Column with the class of each row, or a path. All classes get equally many rows. Instead of `weight`.
        replacement: False gives each row at most once in an epoch. An epoch then has, by default, as many rows as
            fit: all rows of the largest weight, or of the smallest class.
        rows: Number of rows of an epoch. By default as in the plan, or without replacement the largest possible.

    Attributes:
        class_rows: Expected number of rows of each class in an epoch, with `balance`. Empty with `weight`.
        plan: The plan that is sampled.
        options: Arguments after the plan, with the number of rows of an epoch.

    Raises:
        InvalidOption: Weights that are negative, NaN, null or all 0, classes that are null, or too many rows.
        WrongType, MissingColumn, SourceChanged: The column cannot be read as weights or classes.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        weight: str | None = None,
        balance: str | None = None,
        replacement: bool = True,
        rows: int | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise InvalidOption(f"Sampled was given {plan!r:.200}. Give what fb.build_plan(manifest) returns.")
        if plan.windows:
            raise InvalidOption(f"Sampled was given {plan!r:.200}. It samples rows: give the plan of a manifest.")
        validate_type("weight", weight, str | None, "the name of a column")
        validate_type("balance", balance, str | None, "the name of a column")
        validate_type("replacement", replacement, bool, "True or False")
        if (weight is None) == (balance is None):
            raise InvalidOption(f"weight={weight!r} and balance={balance!r}: give one of them, the name of a column.")
        if weight is not None:
            classes: list[Any] = []
            share, codes = _weight_shares(plan, weight)
            total = int(np.rint(share * _SHARE_UNITS) @ np.bincount(codes)) / _SHARE_UNITS
        else:
            assert balance is not None, "one of them is given"
            classes, codes = _classes(plan, balance)
            times = np.bincount(codes)
            share, total = times.min() / times, len(classes) * int(times.min())
        number = _validate_rows(rows, plan.num_rows, int(total), replacement=replacement)
        options = {"weight": weight, "balance": balance, "replacement": replacement, "rows": number}
        self._set_up(plan, share * (number / total), codes, classes, options)

    def _set_up(
        self,
        plan: Plan,
        copies: NDArray[np.float64],
        codes: NDArray[Any],
        classes: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        self.options = options
        self.num_rows, self._replacement = options["rows"], options["replacement"]
        self.plan, self.manifests, self.block_rows = plan, plan.manifests, plan.block_rows
        self.lanes, self.owned_order = plan.lanes, plan.owned_order
        self.class_rows = dict.fromkeys(classes, self.num_rows / max(len(classes), 1))
        self.seed, self.repeats_rows = plan.seed, self._replacement
        self._copies, self._codes = copies, codes
        self._sampling = RowSampling(plan.kept_rows, copies, codes, self.num_rows, seed=plan.seed)
        content = hashlib.sha256(copies.astype("<f8").tobytes() + codes.astype("<u4").tobytes()).hexdigest()
        facts = [SAMPLED_VERSION, plan.id, self.num_rows, self._replacement, content]
        self.id = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self._copies_plan = lru_cache(maxsize=3)(self._plan_copies)
        self._block_rows = lru_cache(maxsize=4 * plan.lanes)(self._sampling.block_rows)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.plan, self._copies, self._codes, [*self.class_rows], self.options)

    def __repr__(self) -> str:
        classes = f" of {len(self.class_rows)} classes" if self.class_rows else " by weight"
        kind = "with" if self._replacement else "without"
        return f"Sampled({self.id[:8]}: {self.num_rows} rows{classes}, {kind} replacement, from {self.plan})"

    def positioned_rows(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> PositionedRows:
        position, block, copy = self._copies_plan(epoch).positioned_rows(epoch, start, stop, lanes)
        row = np.empty_like(copy)
        by_block = np.argsort(block, kind="stable")
        blocks, firsts = np.unique(block[by_block], return_index=True)
        for each, own in zip(blocks.tolist(), np.split(by_block, firsts)[1:], strict=True):
            row[own] = self._block_rows(epoch, each)[copy[own]]
        return PositionedRows(position, block, self.plan.rows_in_block(block, row))

    def row_lanes(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> Ints:
        return self.plan.row_lanes(epoch, start, stop, lanes)

    def block_spans(self, epoch: int, position: int, lanes: Sequence[int]) -> Iterator[BlockSpan]:
        return self._copies_plan(epoch).block_spans(epoch, position, lanes)

    def _plan_copies(self, epoch: int) -> Plan:
        """Order an epoch's copies as rows of their blocks."""
        copies = replace(self.plan.manifest, rows=self._sampling.block_copies(epoch), kept=None)
        plan = self.plan
        return Plan(copies, seed=plan.seed, lanes=plan.lanes, shuffle_rows=plan.shuffle_rows, shuffle=plan.shuffle)


def _weight_shares(plan: Plan, column: str) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Distinct weights relative to the largest, and each row's index.

    The index is into the distinct weights.
    """
    parts = [_numbers(column, array) for array in _read(plan, column)]
    weights = np.concatenate(parts)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any() or not weights.any():
        found = f"{int(wrong.sum())} rows without one, such as {weights[wrong][0]}" if wrong.any() else "0 everywhere"
        raise InvalidOption(
            f"weight={column!r} must hold finite numbers from 0, and has {found}. Mend the column, or give another "
            "one.",
            column=column,
        )
    # Rounded row by row: sums of floats may differ between machines, and the order must not.
    whole, codes = np.unique(np.rint(weights / weights.max() * _SHARE_UNITS), return_inverse=True)
    return whole / _SHARE_UNITS, _small(codes, len(whole))


def _classes(plan: Plan, column: str) -> tuple[list[Any], NDArray[Any]]:
    """Classes in ascending order, and each row's index among them."""
    # Decoded: a dictionary may hold values that no row has, such as unused categories of pandas.
    parts = _read(plan, column)
    values = pa.chunked_array(
        [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in parts]
    )
    if values.null_count:
        not_null = f"{operand_text(column)} is not None"
        raise InvalidOption(
            f"balance={column!r} has {values.null_count} rows without a class. Leave them out: fb.scan(..., "
            f"where={not_null!r}). Or fill the column.",
            column=column,
        )
    if pa.types.is_nested(values.type) or pa.types.is_floating(values.type):
        raise WrongType(f"balance={column!r} is {values.type}. Give a column of integers, bools or text.")
    encoded = comparable(values).combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)
    order = np.array(sorted(range(len(names)), key=lambda code: names[code]))
    return [names[code] for code in order], _small(np.argsort(order)[codes], len(names))


def _read(plan: Plan, column: str) -> list[pa.Array]:
    manifest, reader = plan.manifest, RowGroupReader(plan.manifest)
    chunks = [column_at(reader.read(index, [column]), column).combine_chunks() for index in range(len(manifest))]
    return [part for chunk in chunks for part in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]


def _numbers(column: str, array: pa.Array) -> NDArray[np.float64]:
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise WrongType(f"weight={column!r} is {array.type}. Give a column of numbers.")
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    numbers: NDArray[np.float64] = pc.fill_null(array.cast(pa.float64(), safe=False), float("nan")).to_numpy(
        zero_copy_only=False
    )
    return numbers


def _small(codes: NDArray[Any], levels: int) -> NDArray[Any]:
    return codes.reshape(-1).astype(np.min_scalar_type(max(levels - 1, 0)))


def _validate_rows(rows: int | None, planned: int, largest: int, *, replacement: bool) -> int:
    if rows is None:
        return min(planned, _MOST_ROWS) if replacement else largest
    if replacement:
        return whole_number("rows", rows, least=1, most=_MOST_ROWS)
    if (number := whole_number("rows", rows, least=1)) > largest:
        raise InvalidOption(
            f"rows={rows} and replacement=False: these weights give at most {largest} rows of which each comes once. "
            f"Give rows={largest} or fewer, or replacement=True.",
            rows=rows,
            largest=largest,
        )
    return number


def _rebuild(
    plan: Plan, copies: NDArray[np.float64], codes: NDArray[Any], classes: Sequence[Any], options: Mapping[str, Any]
) -> Sampled:
    sampled = Sampled.__new__(Sampled)
    sampled._set_up(plan, copies, codes, classes, options)  # noqa: SLF001 - reads no data again
    return sampled
