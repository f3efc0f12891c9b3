"""Row filters as text.

Comparisons in Python's grammar over columns, with the nulls of SQL.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable
from keyword import iskeyword
from typing import Any

import pyarrow.compute as pc

from forebay.data.filters.comparisons import Comparison
from forebay.data.filters.operands import ColumnKinds, operand
from forebay.data.parquet.column_paths import top_column
from forebay.errors import InvalidOption

_EXAMPLE = """where="label is not None and day >= '2024-01-31' and site in (1, 2)\""""
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_WORDS = ("and", "or", "not", "in", "is", "None", "True", "False")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_LARGEST = 10_000
_DEEPEST = 50


class Where:
    """A row filter.

    A row is kept if the filter is true for it, and not if it is false or unknown because of a null.

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
            _restore_names(self._tree, text.strip())
            self.text = ast.unparse(self._tree)
            found: set[str] = set()
            _collect(self._tree, found)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = error.msg if isinstance(error, SyntaxError) else error
            equal = " Equal values are compared with ==." if re.search("(?<![<>=!])=(?!=)", text) else ""
            paths = re.findall(r"\w+(?:\.\w+)*", _QUOTED.sub("", text))
            words = [path for path in paths if any(iskeyword(step) and step not in _WORDS for step in path.split("."))]
            named = f" Write column {words[0]!r} as col({words[0]!r})." if words else ""
            raise InvalidOption(
                f"where={text!r:.200} cannot be read ({said}).{equal}{named} Write it as {_EXAMPLE}.", where=text
            ) from error
        self.columns = tuple(sorted(found))

    def expression(self, kinds: ColumnKinds, uri: str) -> pc.Expression:
        """Expression that is true for rows to keep.

        For a file with these columns.

        Raises:
            MissingColumn: A column or a field does not exist. The text of the error names `uri`.
            InvalidOption: A value is not of its column's type, or a path leads through a list.
        """
        operands = {path: operand(path, kinds, uri) for path in self.columns}
        return _build(self._tree, lambda each: each.expression(operands[each.column]))

    def bounds(self, kinds: ColumnKinds, uri: str) -> pc.Expression:
        """Expression to compare with statistics.

        True where rows may match that statistics do not show. Raises as `expression`.

        Least and greatest values leave out NaN, so they do not show that `x != 5` keeps none of [5, NaN].
        """
        operands = {path: operand(path, kinds, uri) for path in self.columns}

        def of_comparison(each: Comparison) -> pc.Expression:
            compared = operands[each.column]
            is_open = each.matches_beyond_bounds(compared, is_field=each.column not in kinds)
            return pc.scalar(True) if is_open else each.expression(compared)

        return _build(self._tree, of_comparison)

    def tops(self, names: Iterable[str]) -> tuple[str, ...]:
        """Columns that the filter compares.

        Or of which it compares a field, among `names`. A path that no column holds stands for itself.
        """
        known = set(names)
        return tuple(dict.fromkeys(top_column(path, known) or path for path in self.columns))


def _restore_names(tree: ast.expr, source: str) -> None:
    """Give names the letters of the `source`.

    Python reads those beyond ASCII in another form (NFKC), which may be another column.
    """
    for node in () if source.isascii() else ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = ast.get_source_segment(source, node) or node.id
        elif isinstance(node, ast.Attribute):
            written = ast.get_source_segment(source, node) or node.attr
            node.attr = written.rpartition(".")[2].strip()


def _collect(node: ast.expr, found: set[str], depth: int = 0) -> None:
    """Collect the columns of a filter.

    Raises `ValueError` for anything that is not a filter.
    """
    if depth > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                _collect(part, found, depth + 1)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _collect(part, found, depth + 1)
        case ast.Compare():
            found.update(each.column for each in _comparisons(node))
        case _:
            raise ValueError(f"{ast.unparse(node)!r:.100} is not a comparison")


def _comparisons(node: ast.Compare) -> list[Comparison]:
    """Each comparison of a chain such as `1 < a <= 3`."""
    operands = [node.left, *node.comparators]
    return [
        _comparison(left, type(op), right)
        for left, op, right in zip(operands[:-1], node.ops, operands[1:], strict=True)
    ]


def _comparison(left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> Comparison:
    column, other = _column(left), _column(right)
    if (column is None) == (other is None):
        raise ValueError(f"{ast.unparse(left)!r:.60} and {ast.unparse(right)!r:.60} are not a column and a value")
    if column is None:
        if op not in _MIRRORED | {ast.Eq: 0, ast.NotEq: 0}:
            raise ValueError(f"the column comes before 'in' and 'is', not after: {ast.unparse(right)!r:.60}")
        return Comparison(str(other), _MIRRORED.get(op, op), _value(left))
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
    return Comparison(column, op, value)


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


def _build(
    node: ast.expr, of_comparison: Callable[[Comparison], pc.Expression], *, negated: bool = False
) -> pc.Expression:
    """Build the expression of a filter.

    Each `not` moves to the comparisons, by De Morgan's laws.
    """
    match node:
        case ast.UnaryOp(operand=part):
            return _build(part, of_comparison, negated=not negated)
        case ast.BoolOp(op=op, values=nodes):
            parts, is_and = [_build(part, of_comparison, negated=negated) for part in nodes], isinstance(op, ast.And)
        case ast.Compare():
            parts, is_and = [of_comparison(each._replace(negated=negated)) for each in _comparisons(node)], True
        case _:
            raise AssertionError(f"{ast.dump(node)} was checked before")
    return functools.reduce(operator.and_ if is_and != negated else operator.or_, parts)
