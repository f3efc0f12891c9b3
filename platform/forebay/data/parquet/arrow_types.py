"""Arrow types parsed from the text in a manifest.

Also columns of constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

_LISTS: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
_DECIMALS: dict[str, Callable[[int, int], pa.DataType]] = {
    "decimal32": pa.decimal32,
    "decimal64": pa.decimal64,
    "decimal128": pa.decimal128,
    "decimal256": pa.decimal256,
}
_NAMED = {
    "halffloat": pa.float16(),
    "extension<arrow.uuid>": pa.uuid(),
    "extension<arrow.json>": pa.json_(),
    "extension<arrow.bool8>": pa.bool8(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
}
_LIST = re.compile(
    r"(?P<kind>list|large_list|list_view|large_list_view|fixed_size_list)<(?P<item>.*)>(\[(?P<size>\d+)\])?"
)
_DICTIONARY = re.compile(r"dictionary<values=(?P<values>.*), indices=(?P<indices>\w+), ordered=(?P<ordered>\d)>")
_DECIMAL = re.compile(r"(?P<kind>decimal\d+)\((?P<precision>\d+), (?P<scale>-?\d+)\)")
_BINARY = re.compile(r"fixed_size_binary\[(?P<size>\d+)\]")
_ZONED = re.compile(r"timestamp\[(?P<unit>\w+), tz=(?P<zone>.*)\]")
_ITEM = re.compile(r"(?P<name>[^:<]*): (?P<type>.*?)(?P<required> not null)?")
_STRUCT = re.compile(r"struct<(?P<fields>.*)>", re.DOTALL)
_MAP = re.compile(r"map<(?P<parts>.*)>", re.DOTALL)
_ENTRY_NAME = re.compile(r" \('[^']*'\)$")


def parse_type(text: str) -> pa.DataType:
    """Type whose `str()` is `text`.

    Types without such a text (unknown extensions, structs with names like `a: b, c`) become `pa.opaque`, which
    carries the text. The nullability of the items of lists and the names of those of maps do not matter.

    >>> parse_type("list<element: decimal128(10, 2)>").value_type
    Decimal128Type(decimal128(10, 2))
    """
    if text in _NAMED:
        return _NAMED[text]
    for pattern, build in _PARSERS:
        match = pattern.fullmatch(text)
        if match:
            found = build(match)
            return pa.opaque(pa.null(), text, "parquet") if found is None else found
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return pa.opaque(pa.null(), text, "parquet")


def _list(match: re.Match[str]) -> pa.DataType:
    item = _ITEM.fullmatch(match["item"])
    assert item, f"Arrow writes the items of a list as 'name: type', not {match['item']!r}"
    value = pa.field(item["name"], parse_type(item["type"]))
    if match["kind"] == "fixed_size_list":
        return pa.list_(value, int(match["size"]))
    return _LISTS[match["kind"]](value)


def _dictionary(match: re.Match[str]) -> pa.DataType:
    return pa.dictionary(parse_type(match["indices"]), parse_type(match["values"]), match["ordered"] == "1")


def _decimal(match: re.Match[str]) -> pa.DataType:
    return _DECIMALS[match["kind"]](int(match["precision"]), int(match["scale"]))


def _binary(match: re.Match[str]) -> pa.DataType:
    return pa.binary(int(match["size"]))


def _timestamp(match: re.Match[str]) -> pa.DataType:
    return pa.timestamp(match["unit"], match["zone"])


def _struct(match: re.Match[str]) -> pa.DataType | None:
    fields = []
    for part in _split(match["fields"]):
        name, colon, kind = part.partition(": ")
        if not colon:
            return None
        value = parse_type(kind.removesuffix(" not null"))
        # A damaged file may state a column of nulls without nulls, which pyarrow does not build.
        fields.append(pa.field(name, value, not kind.endswith(" not null") or pa.types.is_null(value)))
    found = pa.struct(fields)
    # A name with the marks of the text is read as something else.
    return found if _without_items(str(found)) == _without_items(match[0]) else None


def _map(match: re.Match[str]) -> pa.DataType | None:
    parts = _split(match["parts"])
    if not 2 <= len(parts) <= 3:
        return None
    key, item = (parse_type(_ENTRY_NAME.sub("", part)) for part in parts[:2])
    if pa.types.is_null(key):
        return None
    return pa.map_(key, item, keys_sorted=len(parts) == 3)


def _split(text: str) -> list[str]:
    """Parts of `text` between commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, mark in enumerate(text):
        depth += (mark in "<([") - (mark in ">)]")
        if not depth and text.startswith(", ", position):
            parts.append(text[start:position])
            start = position + 2
    return [*parts, text[start:]] if text else []


def _without_items(text: str) -> str:
    """Text of a type, normalized for comparison.

    It leaves out the names and nullability of the items of lists and maps.
    """
    return re.sub(r"(list(?:_view)?)<[^:<]*: ", r"\1<", re.sub(r" \('[^']*'\)| not null(?=>)", "", text))


_PARSERS = (
    (_STRUCT, _struct),
    (_MAP, _map),
    (_LIST, _list),
    (_DICTIONARY, _dictionary),
    (_DECIMAL, _decimal),
    (_BINARY, _binary),
    (_ZONED, _timestamp),
)


def constant_scalar(data_type: str, text: str | None) -> pa.Scalar:
    """Scalar of a column of type `data_type`.

    None is null. Raises `pa.ArrowException` if the text cannot be cast.
    """
    kind = parse_type(data_type)
    if text is None:
        return pa.scalar(None, kind)
    return pa.scalar(text, pa.string()).cast(kind)


def constant_array(data_type: str, text: str | None, rows: int) -> pa.Array:
    """Column of `rows` equal values."""
    if text is None:
        return pa.nulls(rows, parse_type(data_type))
    return pa.repeat(constant_scalar(data_type, text), rows)


def has_nulls(data_type: str) -> bool:
    """Whether a column of this type can hold nulls.

    Columns of unknown extensions cannot.
    """
    return not isinstance(parse_type(data_type), pa.OpaqueType)
