"""Transform of columns into a block of arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_paths import schema_with_paths, top_column
from forebay.data.parquet.decoded_table import Columns, as_table, types_of, with_paths
from forebay.data.transform.block import ATTACHED, ArraySchema, Block
from forebay.data.transform.features.fixed_shape import Array
from forebay.data.transform.features.groups import Categorical, Dense, Feature, Label, Ragged
from forebay.data.transform.features.image import Image
from forebay.data.transform.features.ragged import LIST_OFFSETS, LIST_VALUES
from forebay.data.transform.features.text import Bytes
from forebay.data.transform.features.timestamps import Time
from forebay.data.transform.fingerprint.function import function_identity, function_name, validate_unchanged
from forebay.data.transform.fingerprint.values import Identity, canonical, digest
from forebay.errors import InvalidOption, TransformFailed
from forebay.runtime.foreign_code import message_of, replaced_errors
from forebay.runtime.user_frames import with_traceback

LAYOUT_VERSION = 2
"""Increased when the same options give other arrays, so that no cached block of an older version is used."""

FEATURES = (Dense, Categorical, Ragged, Label, Time, Array, Bytes, Image)

RowFunction = Callable[[pa.RecordBatch], Mapping[str, Any]]


@dataclass(frozen=True, init=False, slots=True, eq=False)
class Transform:
    """Defines which columns become which arrays.

    Takes either feature groups or `fn`. With feature groups, each keyword names an array of the batch. `fn` takes a
    RecordBatch and returns a dict of arrays. A row group arrives as one batch. Each array must have one entry per row
    of the batch, in order. Several threads call `fn` at once, and it must return new arrays every time.

    Immutable and picklable. The fingerprint is computed here. A loader and a cache compute it again, and raise
    `Unfingerprintable` if anything that `fn` reads was changed in between.

    `version` stands for what the fingerprint cannot see of `fn`. What is seen counts as well.

    Raises `InvalidOption` unless exactly one of `fn` and features is given, or if two features make an array of the
    same name. Raises `Unfingerprintable` for a `fn` that needs a `version` and has none.
    """

    features: Mapping[str, Feature]
    fn: RowFunction | None
    version: str | None
    fingerprint: str
    """SHA-256, hex. Equal fingerprints make equal blocks of equal rows."""
    _identity: Identity = field(repr=False)

    def __init__(self, *, fn: RowFunction | None = None, version: str | None = None, **features: Feature) -> None:
        _check_options(fn, version, features)
        identity = _identity_of(fn, version, features)
        for name, value in (
            ("features", dict(features)),
            ("fn", fn),
            ("version", version),
            ("fingerprint", digest(canonical(identity).encode())),
            ("_identity", identity),
        ):
            object.__setattr__(self, name, value)

    def validate_unchanged(self) -> None:
        """Raise `Unfingerprintable` if `fn` or a feature has changed.

        Something that it reads was changed since, or is another in this process.
        """
        if self.fn is None and not self.features:
            return
        found = _identity_of(self.fn, self.version, self.features)
        if found != self._identity:
            name = function_name(self.fn) if self.fn is not None else ", ".join(self.features)
            validate_unchanged("fb.Transform", name, self._identity, found)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Columns and paths to read, in order of use.

        Each once. None with `fn`: all columns of the manifest.
        """
        if self.fn is not None:
            return None
        return tuple(dict.fromkeys(column for feature in self.features.values() for column in feature.columns))

    def check(self, manifest: Manifest) -> None:
        """Check that every feature can use its columns.

        Raises `MissingColumn` or `WrongType`. Does not call `fn`.
        """
        schema = schema_with_paths(
            {field.name: parse_type(field.type) for field in manifest.fields}, self.columns or ()
        )
        for name, feature in self.features.items():
            feature.check(name, schema)

    def array_schema(self, manifest: Manifest) -> ArraySchema | None:
        """Name, dtype and trailing shape of each array.

        For the manifest's rows. None with `fn`. Raises as `check`.
        """
        if self.fn is not None:
            return None
        self.check(manifest)
        types = {field.name: parse_type(field.type) for field in manifest.fields}
        tops = dict.fromkeys(str(top_column(name, types)) for name in self.columns or ())
        return self.apply(pa.schema([(name, types[name]) for name in tops]).empty_table()).schema

    def apply(self, table: Columns) -> Block:
        """Transform `table` into a block.

        It has the same rows in the same order, however the table is divided into chunks. Raises the errors of `check`,
        and `NullLabel`. With `fn`: raises `TransformFailed` if `fn` raises (the original is the cause) or returns
        anything but numeric arrays, and `RowCountChanged` if an array has another number of rows.
        """
        if self.fn is not None:
            return _block_of(self.fn, one_batch(as_table(table)))
        table = with_paths(table, self.columns or ())
        schema = types_of(table)
        arrays: dict[str, Any] = {}
        for name, feature in self.features.items():
            feature.check(name, schema)
            arrays.update(feature.arrays(name, table))
        lists = {name for name in arrays if name.startswith((LIST_VALUES, LIST_OFFSETS))}
        plain = {name: array for name, array in arrays.items() if name not in lists}
        checked = Block.of(plain, table.num_rows).arrays if plain else {}
        return Block(table.num_rows, {name: checked.get(name, array) for name, array in arrays.items()})


def _identity_of(fn: RowFunction | None, version: str | None, features: Mapping[str, Feature]) -> Identity:
    return {
        "layout": LAYOUT_VERSION,
        "fn": function_identity(fn, version) if fn is not None else None,
        "features": [[name, feature.identity()] for name, feature in features.items()],
    }


def _check_options(fn: RowFunction | None, version: str | None, features: Mapping[str, Feature]) -> None:
    if (fn is None) == (not features):
        given = f"fn and the features {', '.join(features)}" if features else "nothing"
        raise InvalidOption(f"Transform was given {given}. Give either fn=... or feature groups by name.")
    if fn is not None and not callable(fn):
        raise InvalidOption(
            f"Transform(fn={fn!r}) cannot be called. Give a function from RecordBatch to dict of arrays."
        )
    if version is not None and fn is None:
        raise InvalidOption(
            f"Transform(version={version!r}) has no fn to be a version of. Leave it out.", version=version
        )
    makers: dict[str, str] = {}
    for name, feature in features.items():
        if not isinstance(feature, FEATURES):
            raise InvalidOption(
                f"Transform({name}={feature!r}) is not a feature. Give one of "
                f"{', '.join(each.__name__ for each in FEATURES)}."
            )
        if name.startswith(ATTACHED):
            raise InvalidOption(f"A feature is named {name!r}. Names with {ATTACHED!r} are reserved: rename it.")
        for array in feature.array_names(name):
            if array in makers:
                raise InvalidOption(f"Features {makers[array]!r} and {name!r} both make array {array!r}. Rename one.")
            makers[array] = name


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Combine all rows into one batch.

    Raises `TransformFailed` if a column holds too much text for one.
    """
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise TransformFailed(
            f"A row group of {table.num_rows} rows has more than 2 GiB of text in a column, which does not fit "
            "one batch. Write smaller row groups, or the column as large_string."
        )
    return batches[0]


def _raised(name: str, batch: pa.RecordBatch, error: BaseException) -> TransformFailed:
    text = (
        f"Transform function {name} raised {type(error).__name__}: {message_of(error)}. It was called with "
        f"{batch.num_rows} rows: correct it, or leave out the rows for which it raises (manifest.keep)."
    )
    return TransformFailed(with_traceback(text, error), function=name, rows=batch.num_rows)


def _block_of(fn: RowFunction, batch: pa.RecordBatch) -> Block:
    name = function_name(fn)
    try:
        with replaced_errors(partial(_raised, name, batch)):
            arrays = fn(batch)
    except SystemExit as error:  # `sys.exit` would end the trainer without a word, and the loop of an actor
        raise _raised(name, batch, error) from error
    if not isinstance(arrays, Mapping):
        raise TransformFailed(
            f"Transform function {name} returned a {type(arrays).__name__}. Return {{name: array, ...}}.", function=name
        )
    refuse_reused(name, arrays.values())
    try:
        return Block.of(arrays, batch.num_rows)
    except TransformFailed as error:
        raise type(error)(f"Transform function {name}: {error}", function=name, **error.facts) from error


_returned: dict[int, weakref.ref[np.ndarray]] = {}


def refuse_reused(function: str, values: Iterable[object]) -> None:
    """Raise `TransformFailed` for memory that was returned before.

    It refuses a writable array that an earlier call has returned and that is still in use. Several threads keep blocks
    while others are made. A buffer that is filled again for every row group would change rows that were already
    returned.
    """
    for key, owner in {id(owner): owner for value in values if (owner := _writable_owner(value)) is not None}.items():
        known = _returned.get(key)
        if known is not None and known() is owner:
            raise TransformFailed(
                f"Transform function {function} returned the same array twice. It is called by several threads, and "
                "what it returned is used long after: make a new array in every call, or copy it.",
                function=function,
            )
        _returned[key] = weakref.ref(owner, partial(_forget, key))


def _writable_owner(value: object) -> np.ndarray | None:
    """Array that owns the memory of `value`.

    `value` itself, or the array of which it is a view. None if it is not writable.
    """
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return value if isinstance(value, np.ndarray) and value.flags.writeable else None


def _forget(key: int, _dead: weakref.ref[np.ndarray]) -> None:
    _returned.pop(key, None)
