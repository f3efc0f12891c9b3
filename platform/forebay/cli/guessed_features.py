"""Features of a dataset, guessed from its schema and first row group."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_paths import operand_text
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.transform.features.categories import is_text, value_type
from forebay.data.transform.features.columns import column_type, paths_into, wrong_type
from forebay.data.transform.features.ragged import is_list
from forebay.errors import InvalidOption

_TARGETS = (
    "label",
    "target",
    "y",
    "clicked",
    "click",
    "converted",
    "conversion",
    "churn",
    "outcome",
    "class",
    "rating",
)
_ID_NAME = re.compile(r"(^|_)(id|ids|code|key|zip|hash|cat)$|^c\d+$|[a-z](Id|ID)$")
_TEXT_CHARACTERS = 40
"""Mean length from which strings are a text, not a category."""
_UNIQUE_ROWS = 100
"""Least rows whose values tell that each row has its own."""


@dataclass(slots=True, kw_only=True)
class GuessedFeatures:
    """Columns by use. `skipped` has a reason for each column that no feature takes.

    Attributes:
        target: Column to predict.
        is_binary: Whether it is a bool, or only 0 and 1.
        where: Filter of the rows whose target is a number, empty if all are.
        is_guessed: Whether the target was not named.
    """

    target: str
    is_binary: bool = False
    where: str = ""
    is_guessed: bool = True
    numbers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    vectors: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no column is a feature."""
        return not (self.numbers or self.ids or self.times or self.lists or self.vectors)


def guess_features(manifest: Manifest, target: str | None = None) -> GuessedFeatures:
    """Sort the columns of a dataset by use.

    Reads the first row group. Raises `MissingColumn` or `WrongType` for a wrong target, and `InvalidOption` if no
    column can be one, or none is left for a feature.
    """
    schema: Mapping[str, Any] = {each.name: parse_type(each.type) for each in manifest.fields}
    if target is not None and not _is_number(column_type("--target", target, schema)):
        raise wrong_type("--target", target, schema[target], "A target is a number or a bool: write texts as 0, 1, ...")
    readable = [name for name, kind in schema.items() if not isinstance(kind, pa.OpaqueType)]
    table = RowGroupReader(manifest).read(0, readable)
    chosen = target or _target(schema, table)
    if chosen is None:
        raise InvalidOption(
            "the data have no column of numbers or bools, so nothing can be the target. Write the label as a number."
        )
    nullable = next(each.nullable for each in manifest.fields if each.name == chosen)
    found = GuessedFeatures(
        target=chosen,
        is_binary=_is_binary(table[chosen]),
        where=_where(chosen, schema[chosen], nullable=nullable),
        is_guessed=target is None,
    )
    for name, kind in schema.items():
        if name != chosen:
            _sort_in(found, name, kind, table[name] if name in readable else None)
    if found.is_empty:
        raise InvalidOption(
            f"the data have no column for a feature beside the target {chosen!r}: "
            f"{'; '.join(f'{name}: {why}' for name, why in found.skipped.items()) or 'it is the only one'}."
        )
    return found


def _sort_in(found: GuessedFeatures, name: str, kind: pa.DataType, values: pa.ChunkedArray | None) -> None:
    plain, types = value_type(kind), pa.types
    if values is None or types.is_null(plain):
        found.skipped[name] = f"{kind}, of no use for a feature"
    elif types.is_fixed_size_list(plain) and _is_number(plain.value_type):
        found.vectors[name] = plain.list_size
    elif is_list(plain):
        item = value_type(plain.value_type)
        if types.is_integer(item) or is_text(item):
            found.lists.append(name)
        else:
            found.skipped[name] = f"{kind}: fb.Ragged or fb.Array takes it, with a length"
    elif types.is_temporal(plain):
        found.times.append(name)
    elif (types.is_integer(plain) or is_text(plain)) and _is_unique(values):
        found.skipped[name] = "each row has a value of its own"
    elif is_text(plain):
        _sort_in_text(found, name, values)
    elif types.is_integer(plain) and _ID_NAME.search(name):
        found.ids.append(name)
    elif _is_number(plain):
        found.numbers.append(name)
    else:
        found.skipped[name] = f"{kind}.{paths_into(name, plain)}".rstrip(".")


def _sort_in_text(found: GuessedFeatures, name: str, values: pa.ChunkedArray) -> None:
    lengths = pc.binary_length(values.cast(pa.large_binary()))
    if (pc.mean(lengths).as_py() or 0.0) > _TEXT_CHARACTERS:
        found.skipped[name] = "long texts or bytes: fb.Text or fb.Bytes takes them, for a model that reads them"
    else:
        found.ids.append(name)


def _target(schema: Mapping[str, pa.DataType], table: pa.Table) -> str | None:
    """Column that is probably the target: by name, else a bool, zeros and ones, or the last number."""
    numbers = [name for name, kind in schema.items() if _is_number(kind)]
    by_name = {name.lower(): name for name in reversed(numbers)}
    named = [by_name[name] for name in _TARGETS if name in by_name]
    bools = [name for name in numbers if pa.types.is_boolean(value_type(schema[name]))]
    binary = [name for name in numbers if _is_binary(table[name])]
    return next(iter((*named, *bools, *binary[::-1], *numbers[::-1])), None)


def _is_number(kind: pa.DataType) -> bool:
    plain, types = value_type(kind), pa.types
    return bool(
        types.is_integer(plain) or types.is_floating(plain) or types.is_boolean(plain) or types.is_decimal(plain)
    )


def _is_binary(values: pa.ChunkedArray) -> bool:
    if pa.types.is_boolean(value_type(values.type)):
        return True
    known: Sequence[object] = values.unique().drop_null().to_pylist()[:3]
    return len(known) > 0 and set(known) <= {0, 1}


def _where(target: str, kind: pa.DataType, *, nullable: bool) -> str:
    name = operand_text(target)
    if pa.types.is_floating(value_type(kind)):
        return f"{name} > -1e38 and {name} < 1e38"  # no null, NaN or infinity
    return f"{name} is not None" if nullable else ""


def _is_unique(values: pa.ChunkedArray) -> bool:
    return len(values) >= _UNIQUE_ROWS and len(values.unique()) == len(values)
