"""Row filters as text: the comparisons of Python's grammar over columns, with the nulls of SQL."""

from __future__ import annotations

import ast
import datetime
import decimal
import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import InvalidOption
from forebay.manifest.columns.struct_paths import top_column
from forebay.manifest.rows.operands import ColumnKinds, Operand, operand

_EXAMPLE = """where="label is not None and day >= '2024-01-31' and site in (1, 2)\""""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_LARGEST = 10_000
_DEEPEST = 50


class Where:
    """Row filter. A row is kept if the filter is true for it, and not if it is false or unknown because of a null.

    Compares a column with a value (`==`, `!=`, `<`, `<=`, `>`, `>=`), with a list of values (`in`, `not in`) or with
    null (`is None`, `is not None`), and joins comparisons by `and`, `or`, `not`. A name of other characters is written
    `col("user id")`. A date or a time is an ISO text. `user.age` is a field of a struct, unless a column has that name.

    Attributes:
        text: The filter in normal form. Equal filters in other spaces or quotes have the same.
        columns: Columns and paths into structs that it compares, sorted.

    Raises:
        InvalidOption: The text is not a filter.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidOption(f"where={text!r:.200} is not text. Write it as {_EXAMPLE}.")
        try:
            if len(text) > _LARGEST:
                raise ValueError(f"it has {len(text)} characters, and at most {_LARGEST} are read")
            self._tree = ast.parse(text.strip(), mode="eval").body
            self.text = ast.unparse(self._tree)
            found: set[str] = set()
            _collect(self._tree, found)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidOption(
                f"where={text!r:.200} cannot be read ({error}). Write it as {_EXAMPLE}.", where=text
            ) from error
        self.columns = tuple(sorted(found))

    def expression(self, kinds: ColumnKinds, place: str) -> pc.Expression:
        """Filter as an expression of pyarrow, for a file with these columns.

        Raises:
            MissingColumn: A column or a field does not exist. The text of the error names `place`.
            InvalidOption: A value is not of its column's type, or a path leads through a list.
        """
        return _build(self._tree, {path: operand(path, kinds, place) for path in self.columns})

    def tops(self, names: Iterable[str]) -> tuple[str, ...]:
        """Columns, of those with these `names`, that hold what is compared. A path that no column holds is itself."""
        known = set(names)
        return tuple(dict.fromkeys(top_column(path, known) or path for path in self.columns))


def _collect(node: ast.expr, found: set[str], depth: int = 0) -> None:
    """Add the columns of a filter to `found`. Raises `ValueError` for anything that is not a filter."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _collect(part, found, depth + 1)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _collect(part, found, depth + 1)
        case ast.Compare():
            for column, _, _ in _comparisons(node):
                found.add(column)
        case _:
            raise ValueError(f"{ast.unparse(node)!r:.100} is not a comparison")


def _comparisons(node: ast.Compare) -> list[tuple[str, type[ast.cmpop], Any]]:
    """Column, operator and value of each comparison of a chain such as `1 < a <= 3`."""
    operands = [node.left, *node.comparators]
    return [
        _comparison(left, type(op), right)
        for left, op, right in zip(operands[:-1], node.ops, operands[1:], strict=True)
    ]


def _comparison(left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> tuple[str, type[ast.cmpop], Any]:
    column, other = _column(left), _column(right)
    if (column is None) == (other is None):
        raise ValueError(f"{ast.unparse(left)!r:.60} and {ast.unparse(right)!r:.60} are not a column and a value")
    if column is None:
        if op not in _MIRRORED | {ast.Eq: 0, ast.NotEq: 0}:
            raise ValueError(f"the column comes before 'in' and 'is', not after: {ast.unparse(right)!r:.60}")
        return str(other), _MIRRORED.get(op, op), _value(left)
    value = _value(right)
    if op in (ast.Is, ast.IsNot):
        if value is not None:
            raise ValueError("'is' compares with None alone")
    elif op in (ast.In, ast.NotIn):
        if not isinstance(value, list) or not value:
            raise ValueError("'in' compares with a list of values")
    elif isinstance(value, list):
        raise ValueError(f"a list is compared by 'in': {ast.unparse(right)!r:.60}")
    if op not in (ast.Is, ast.IsNot) and (value is None or (isinstance(value, list) and None in value)):
        raise ValueError("None is compared by 'is None' or 'is not None'")
    return column, op, value


def _column(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=step):
            above = _column(inner)
            return None if above is None else f"{above}.{step}"
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]):
            return name
    return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if not isinstance(
            number, bool
        ):
            return -number
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item) for item in items]
    raise ValueError(f"{ast.unparse(node)!r:.60} is not a number, a text, True, False, None or a list of these")


def _build(node: ast.expr, operands: Mapping[str, Operand]) -> pc.Expression:
    match node:
        case ast.BoolOp(op=op, values=parts):
            join = operator.and_ if isinstance(op, ast.And) else operator.or_
            return functools.reduce(join, [_build(part, operands) for part in parts])
        case ast.UnaryOp(operand=part):
            return ~_build(part, operands)
        case ast.Compare():
            found = [_compare(column, op, value, operands[column]) for column, op, value in _comparisons(node)]
            return functools.reduce(operator.and_, found)
    raise AssertionError(f"{ast.dump(node)} was checked before")


def _compare(column: str, op: type[ast.cmpop], value: Any, compared: Operand) -> pc.Expression:
    of_column, data_type = compared
    if op in (ast.Is, ast.IsNot):
        return of_column.is_null() if op is ast.Is else of_column.is_valid()
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
        of_column = of_column.cast(data_type)
    if op in (ast.In, ast.NotIn):
        # Not isin(): it is false for a null, and `not` would then keep the row.
        equal = [of_column == _scalar(column, item, data_type) for item in value]
        anyone = functools.reduce(operator.or_, equal)
        return anyone if op is ast.In else ~anyone
    return _COMPARISONS[op](of_column, _scalar(column, value, data_type))


def _scalar(column: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Value to compare a column with. Raises `InvalidOption` if the column holds no such values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    types = pa.types
    try:
        if types.is_boolean(data_type) and isinstance(value, bool):
            return pa.scalar(value)
        if is_number and (types.is_integer(data_type) or types.is_floating(data_type)):
            return pa.scalar(value)
        if is_number and types.is_decimal(data_type):
            return pa.scalar(decimal.Decimal(str(value)))
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
    return pa.scalar(moment, data_type)


def _wrong(column: str, value: Any, data_type: pa.DataType, why: str = "") -> InvalidOption:
    if pa.types.is_struct(data_type):
        names = ", ".join(f"{column}.{field.name}" for field in data_type)
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
