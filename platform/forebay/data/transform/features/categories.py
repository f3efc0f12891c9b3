"""Ids of categorical values: hashed, or from a vocabulary.

Id 0 is always null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.data.transform.features.columns import wrong_type
from forebay.data.transform.features.hashing import Hashes, Ids, bucket_ids, column_salt, hash_integers, hash_texts
from forebay.errors import InvalidOption, WrongType

_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_COUNTABLE = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)
_WITHOUT_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def value_type(found: pa.DataType) -> pa.DataType:
    """Type of the values below dictionaries and extension types.

    It has a form that Arrow can look up.
    """
    while pa.types.is_dictionary(found) or isinstance(found, pa.BaseExtensionType):
        found = found.value_type if pa.types.is_dictionary(found) else found.storage_type
    if pa.types.is_decimal32(found) or pa.types.is_decimal64(found):
        return pa.decimal128(found.precision, found.scale)
    return _WITHOUT_VIEWS.get(found, found)


def is_text(found: pa.DataType) -> bool:
    """Whether values are stored as bytes.

    True for strings and binary.
    """
    return any(kind(found) for kind in _TEXT)


def is_countable(found: pa.DataType) -> bool:
    """Whether values are stored as integers.

    True for integers, bools, dates and times.
    """
    return any(kind(found) for kind in _COUNTABLE)


def check_categories(feature: str, column: str, found: pa.DataType) -> None:
    """Raise `WrongType` unless values can have ids."""
    values = value_type(found)
    if pa.types.is_floating(values):
        raise wrong_type(feature, column, found, "Floats have no stable identity: use Dense, or cast them to integers.")
    if not (is_text(values) or is_countable(values) or pa.types.is_decimal(values) or pa.types.is_null(values)):
        raise wrong_type(
            feature, column, found, "It takes integers, bools, strings, binary, decimals, dates and times."
        )


def hashed_ids(array: pa.Array, column: str, buckets: int) -> Ids:
    """Hash values to ids, int64 [len(array)].

    0 for null, otherwise a hash in [1, buckets). Integers are hashed by value, of any width. Dates and times are hashed
    as integers in their stored unit, decimals as text.
    """
    salt = column_salt(column)

    def encode(values: pa.Array) -> Ids:
        if is_countable(values.type):
            return bucket_ids(hash_integers(_as_uint64(values), salt), buckets)
        texts = _as_bytes(values)
        return bucket_ids(hash_texts(texts, salt, len(texts)), buckets)

    array = _storage(array)
    if is_text(array.type) or pa.types.is_decimal(array.type):
        array = array.dictionary_encode()
    return _ids(array, encode)


def vocabulary_ids(array: pa.Array, vocabulary: pa.Array) -> Ids:
    """Look up ids in a vocabulary, int64 [len(array)].

    0 for null, 1 for a value that is not in the vocabulary, otherwise 2 + its position.
    """

    def encode(values: pa.Array) -> Ids:
        positions: Ids = pc.fill_null(pc.index_in(values, value_set=vocabulary), -1).to_numpy().astype(np.int64)
        return positions + 2

    return _ids(_storage(array), encode)


def vocabulary_array(column: str, vocabulary: Sequence[object], found: pa.DataType) -> pa.Array:
    """Vocabulary as an array of the column's type.

    Raises `WrongType` if a value does not fit the type.
    """
    try:
        return pa.array(vocabulary, type=value_type(found))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise WrongType(
            f"The vocabulary of column {column!r} does not fit its type {found}: {error}. Fit it on this data again.",
            column=column,
            found=str(found),
        ) from error


def plain_values(array: pa.Array) -> pa.Array:
    """Decode values to fit a vocabulary on.

    The result has no dictionaries, and dates and times are integers.
    """
    array = _storage(array)
    while pa.types.is_dictionary(array.type):
        array = _storage(array.dictionary_decode())
    is_time = is_countable(array.type) and not (pa.types.is_integer(array.type) or pa.types.is_boolean(array.type))
    return _integers(array) if is_time else array


def _ids(array: pa.Array, encode: Callable[[pa.Array], Ids]) -> Ids:
    """Apply `encode`, with 0 for nulls.

    Encodes each value of a dictionary only once.
    """
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    if pa.types.is_dictionary(array.type):
        if not array.indices.null_count:
            rows = array.indices.to_numpy().astype(np.int64, copy=False)
            by_value: Ids = _ids(_storage(array.dictionary), encode).take(rows)
            return by_value
        # Row -1 + 1 is the id of null, so an empty dictionary (all rows null) needs no special case.
        id_of = np.concatenate((np.zeros(1, np.int64), _ids(_storage(array.dictionary), encode)))
        rows = pc.fill_null(pc.cast(array.indices, pa.int64()), -1).to_numpy()
        ids: Ids = id_of[rows + 1]
        return ids
    ids = encode(array)
    if array.null_count:
        ids[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return ids


def _storage(array: pa.Array) -> pa.Array:
    array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    return array if pa.types.is_dictionary(array.type) else pc.cast(array, value_type(array.type))


def _as_uint64(array: pa.Array) -> Hashes:
    """Integers in two's complement of 64 bits.

    Nulls become 0.
    """
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.uint8())
    elif not pa.types.is_integer(array.type):
        array = _integers(array)
    filled = pc.fill_null(array, 0) if array.null_count else array
    values: Hashes = filled.to_numpy().astype(np.uint64)
    return values


def _integers(times: pa.Array) -> pa.Array:
    return times.view(pa.int32() if times.type.bit_width == 32 else pa.int64())


def _as_bytes(array: pa.Array) -> list[bytes]:
    if pa.types.is_decimal(array.type):
        array = pc.cast(array, pa.string())
    if not len(array):
        return []
    array = pc.cast(array, pa.large_binary())
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(array) + 1, array.offset * 8).tolist()
    # Slicing one bytes object is several times faster than Array.to_pylist, which makes a scalar per value.
    text = data.to_pybytes() if data is not None else b""
    return [text[start:stop] for start, stop in itertools.pairwise(offsets)]


def check_buckets(feature: str, buckets: int) -> None:
    """Raise `InvalidOption` unless `buckets` is usable.

    It needs an id for null and one for values, and all ids must fit int64.
    """
    if not isinstance(buckets, int) or not 2 <= buckets < 2**63:
        raise InvalidOption(
            f"{feature}(buckets={buckets!r}) is invalid. Give an integer of at least 2; id 0 is null.", buckets=buckets
        )


def vocabulary_of(column: str, vocabulary: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
    """Values of a column, checked.

    Raises `InvalidOption` if the vocabulary lacks the column, or has a null or a repeated value.
    """
    if column not in vocabulary:
        raise InvalidOption(
            f"Categorical has a vocabulary for {', '.join(map(repr, vocabulary))}, not for column {column!r}. Fit it "
            "on this column too, or give the column to another Categorical.",
            column=column,
        )
    values = tuple(vocabulary[column])
    if None in values or len(set(values)) < len(values):
        raise InvalidOption(
            f"The vocabulary of column {column!r} holds a null or a value twice. Null has id 0; keep each once.",
            column=column,
        )
    return values
