"""One comparison of a row filter, in pyarrow.

It is exact for every number.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import functools
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.filters.operands import Operand
from forebay.data.parquet.column_paths import operand_text
from forebay.errors import InvalidOption

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
_OPPOSITES |= {after: before for before, after in _OPPOSITES.items()}
_NANOSECONDS = re.compile(r"[.,]\d{7,}(?=$|[Zz+-])")


class Comparison(NamedTuple):
    """Comparison of a column or a path into a struct.

    The right side is a value or a list of values. `negated`: a `not` is before it.
    """

    column: str
    op: type[ast.cmpop]
    value: Any
    negated: bool = False

    def expression(self, compared: Operand) -> pc.Expression:
        """Expression that is true for matching rows.

        False or null for all others.

        Raises `InvalidOption` if the column holds no such values.
        """
        op = _OPPOSITES[self.op] if self.negated else self.op
        if op in (ast.Is, ast.IsNot):
            return compared.expression.is_null() if op is ast.Is else compared.expression.is_valid()
        if pa.types.is_null(compared.type):  # one file may hold a column with nulls alone
            return pc.scalar(pa.scalar(None, pa.bool_()))
        plain = _plain(compared)
        if op in (ast.In, ast.NotIn):
            # Not isin(): it is false for a null, and `not` would then keep the row.
            each, join = (ast.Eq, operator.or_) if op is ast.In else (ast.NotEq, operator.and_)
            return functools.reduce(join, [_compared(self.column, each, item, plain) for item in self.value])
        if self.negated and pa.types.is_floating(plain.type) and op not in (ast.Eq, ast.NotEq):
            # `x >= 1` is not true for NaN, and `not x < 1` is.
            return ~_compared(self.column, self.op, self.value, plain)
        return _compared(self.column, op, self.value, plain)

    def matches_beyond_bounds(self, compared: Operand, *, is_field: bool) -> bool:
        """Whether rows may match of which the statistics of a file do not show that there are any.

        These are NaN, and nulls of a field: Arrow 26 writes 0 of them where a struct is null above a dictionary of
        texts. Dictionaries of numbers and times are written as plain values.
        """
        if self.op in (ast.Is, ast.IsNot):
            is_counted = pa.types.is_primitive(compared.type) or pa.types.is_decimal(compared.type)
            return is_field and not is_counted and (self.op is ast.Is) != self.negated
        differs = self.op in (ast.NotEq, ast.NotIn)
        return pa.types.is_floating(_plain(compared).type) and differs != self.negated


def _plain(compared: Operand) -> Operand:
    """Operand of a type that pyarrow compares."""
    of_column, data_type = compared
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
        return Operand(of_column.cast(data_type), data_type)
    if pa.types.is_float16(data_type):  # Arrow 26 does not compare it
        return Operand(of_column.cast(pa.float32()), pa.float32())
    return compared


def _compared(column: str, op: type[ast.cmpop], value: Any, compared: Operand) -> pc.Expression:
    of_column, data_type = compared
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (pa.types.is_integer(data_type) or pa.types.is_decimal(data_type)):
        return _compared_exactly(op, value, compared)
    if is_number and pa.types.is_floating(data_type):
        return _compared_floats(op, value, compared)
    expression: pc.Expression = COMPARISONS[op](of_column, _scalar(column, value, data_type))
    return expression


def _compared_exactly(op: type[ast.cmpop], value: float, compared: Operand) -> pc.Expression:
    """Compare an integer or a decimal with any number.

    The comparison is changed to one with a value of its own type.

    Arrow would compare int64 with 2.5 as float32, and refuses that for columns with values above 2**24. It refuses
    uint64 beside negative numbers, and decimals beside numbers of so many digits that both have no common type.
    """
    of_column, data_type = compared
    least, most, scale = _range_of(data_type)
    below = _floor(value, scale)
    is_between = abs(value) != math.inf and Fraction(str(value) if scale else value) * Fraction(10) ** scale != below
    if op in (ast.Eq, ast.NotEq):
        if is_between or not least <= below <= most:
            return pc.scalar(False) if op is ast.Eq else of_column.is_valid()
        bound = below
    else:
        # x < 2.5 is x <= 2, and x < 2 is x <= 1. The same for the other direction.
        bound = below - 1 if op in (ast.Lt, ast.GtE) and not is_between else below
        is_upper = op in (ast.Lt, ast.LtE)
        if bound < least or bound >= most:
            return of_column.is_valid() if is_upper == (bound >= most) else pc.scalar(False)
        op = ast.LtE if is_upper else ast.Gt
    number = decimal.Decimal(f"{bound}E{-scale}") if pa.types.is_decimal(data_type) else bound
    expression: pc.Expression = COMPARISONS[op](of_column, pa.scalar(number, data_type))
    return expression


def _compared_floats(op: type[ast.cmpop], value: float, compared: Operand) -> pc.Expression:
    """Compare floats with any number.

    An integer between two floats equals none. The comparison is changed to one with the nearest float.
    """
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    if nearest != value:
        if op in (ast.Eq, ast.NotEq):
            return pc.scalar(False) if op is ast.Eq else compared.expression.is_valid()
        if nearest < value:
            op = ast.LtE if op in (ast.Lt, ast.LtE) else ast.Gt
        else:
            op = ast.Lt if op in (ast.Lt, ast.LtE) else ast.GtE
    expression: pc.Expression = COMPARISONS[op](compared.expression, pa.scalar(nearest))
    return expression


def _range_of(data_type: pa.DataType) -> tuple[int, int, int]:
    """Least value, greatest value, and scale of a type.

    A type of integers or decimals. The values are times 10 to the power of its scale.
    """
    if pa.types.is_decimal(data_type):
        most = 10**data_type.precision - 1
        return -most, most, data_type.scale
    bits = data_type.bit_width
    if pa.types.is_unsigned_integer(data_type):
        return 0, 2**bits - 1, 0
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0


def _floor(value: float, scale: int) -> int:
    if abs(value) == math.inf:
        return (1 if value > 0 else -1) * 10**80
    return math.floor(Fraction(str(value) if scale else value) * Fraction(10) ** scale)


def _scalar(column: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Value to compare a column with.

    Raises `InvalidOption` if the column holds no such values.
    """
    types = pa.types
    try:
        if types.is_boolean(data_type) and isinstance(value, bool):
            return pa.scalar(value)
        if isinstance(value, str):
            if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
                return pa.scalar(value, data_type)
            if types.is_date(data_type):
                return pa.scalar(datetime.date.fromisoformat(value), data_type)
            if types.is_timestamp(data_type):
                return _timestamp(value, data_type)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise _wrong(column, value, data_type, f" ({error})") from error
    raise _wrong(column, value, data_type)


def _timestamp(text: str, data_type: pa.TimestampType) -> pa.Scalar:
    moment = datetime.datetime.fromisoformat(text)
    if (moment.tzinfo is None) == (data_type.tz is not None):
        raise ValueError("a time zone is in one of them only: add +00:00 or leave it out")
    if _NANOSECONDS.search(text):  # Python cuts them to microseconds
        return pa.scalar(text).cast(pa.timestamp("ns", data_type.tz)).cast(data_type)
    # Python's microseconds would be cut to the unit of the column without an error.
    is_between = moment.microsecond % {"s": 1_000_000, "ms": 1000}.get(data_type.unit, 1)
    return pa.scalar(moment, pa.timestamp("us", data_type.tz) if is_between else data_type)


def _wrong(column: str, value: Any, data_type: pa.DataType, why: str = "") -> InvalidOption:
    if pa.types.is_struct(data_type):
        names = ", ".join(operand_text(f"{column}.{field.name}") for field in data_type)
        remedy = f"Compare one of its fields ({names:.200}), or the whole by 'is None' and 'is not None'."
    else:
        remedy = (
            "Compare it with a value of its own type: numbers as 3, texts as 'a', dates and times as '2024-01-31' and "
            "'2024-01-31T12:00:00'."
        )
    return InvalidOption(
        f"where compares column {column!r}, which is {data_type}, with {value!r}{why}. {remedy}",
        column=column,
        type=str(data_type),
    )
