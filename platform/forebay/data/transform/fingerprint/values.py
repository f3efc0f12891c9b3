"""Identities of plain data.

Equal values give equal JSON in every process.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import re
import struct
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Identity: TypeAlias = str | int | bool | list["Identity"] | dict[str, "Identity"] | None

_BY_REPR = (
    bool,
    type(Ellipsis),
    type(NotImplemented),
    decimal.Decimal,
    datetime.date,
    datetime.timedelta,
    datetime.timezone,
)
_LONGEST_TEXT = 200
_JSON = {str, int, bool, type(None)}
_NUMBERS = "biufcmMSUV"
"""Kinds of NumPy dtypes whose values are their bytes."""
_LONG_DOUBLE = np.dtype(np.longdouble), np.dtype(np.clongdouble)


class NotPlain(TypeError):
    """A value without an identity by content."""

    def __init__(self, value: object, detail: str = "") -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__}{detail}")


def value_identity(value: Any, item: Callable[[Any], Identity] | None = None) -> Identity:
    """Identity of `value`.

    Takes None, bools, numbers, strings, bytes, dates, patterns, NumPy and Arrow data, and lists, tuples, dicts and
    sets. Exact types only: a subclass may do anything. Items go through `item`. Raises `NotPlain` for everything else.
    """
    item = item or value_identity
    kind = type(value)
    if value is None:
        return None
    if kind in (list, tuple, dict) and (known := _long_texts(value)) is not None:
        return [kind.__name__, len(value), known]
    if kind in (list, tuple):
        return [kind.__name__, [item(part) for part in value]]
    if kind in (set, frozenset):
        return [kind.__name__, sorted((item(part) for part in value), key=canonical)]
    if kind is dict:
        # Order counts: two dicts that differ only in it may give arrays in another order.
        return ["dict", [[item(key), item(part)] for key, part in value.items()]]
    return [kind.__name__, _leaf(value, item)]


def canonical(identity: Identity) -> str:
    """JSON text of an identity.

    Equal identities give equal texts.
    """
    return json.dumps(identity, sort_keys=True, separators=(",", ":"))


def digest(data: bytes | memoryview) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def _leaf(value: Any, item: Callable[[Any], Identity]) -> Identity:  # noqa: C901, PLR0911 - one answer per kind
    kind = type(value)
    if kind in _BY_REPR:
        return repr(value)
    if kind is str:
        return _short(value)
    if kind in (bytes, bytearray):
        return _short(value.hex())
    if kind is int:
        return _short(hex(value))
    if kind is float:
        return _float(value)
    if kind is complex:
        return [_float(value.real), _float(value.imag)]
    if kind is range:
        return [hex(part) for part in (value.start, value.stop, value.step)]
    if kind is slice:
        return [item(part) for part in (value.start, value.stop, value.step)]
    if kind in (datetime.datetime, datetime.time):
        return [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value, value.tzinfo)]
    if kind is re.Pattern:
        return [item(value.pattern), value.flags]
    if kind.__module__ == "numpy" or isinstance(value, np.dtype):
        return _numpy(value)
    if kind.__module__ == "pyarrow.lib":
        return _arrow(value)
    raise NotPlain(value)


def _short(text: str) -> Identity:
    return text if len(text) <= _LONGEST_TEXT else [digest(text.encode(errors="surrogatepass"))]


def _long_texts(value: Any) -> str | None:
    """Digest of a long collection of plain texts and numbers.

    None for others. A vocabulary of 1,000,000 words takes 0.2 s, and 2 s item by item.
    """
    if len(value) <= _LONGEST_TEXT:
        return None
    items = [*value, *value.values()] if type(value) is dict else value
    if not set(map(type, items)) <= _JSON:
        return None
    try:
        return digest(json.dumps(list(value.items()) if type(value) is dict else value).encode())
    except ValueError:  # an integer of more than 4,300 digits
        return None


def _float(value: float) -> str:
    # A NaN has a sign and a payload, which its text lacks.
    return struct.pack(">d", value).hex() if math.isnan(value) else repr(value)


def _zone(value: object, zone: datetime.tzinfo | None) -> Identity:
    if zone is None or type(zone) is datetime.timezone:
        return repr(zone)
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return zone.key
    raise NotPlain(value, f" in the zone {type(zone).__qualname__}")


def _numpy(value: Any) -> Identity:
    if isinstance(value, np.dtype):
        return _dtype(value)
    kind = type(value)
    if kind is not np.ndarray and not (isinstance(value, np.generic) and kind is value.dtype.type):
        raise NotPlain(value)
    array = np.asarray(value)
    # Memory order shows in `ravel("K")` and the like. Other strides do not outlive a pickle.
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return [_dtype(array.dtype), list(array.shape), order, _content(array, order)]


def _content(array: Any, order: Any) -> str:
    if array.dtype.names is not None:  # field by field: what lies between fields is no content
        return digest(canonical([_content(array[name], order) for name in array.dtype.names]).encode())
    if array.dtype in _LONG_DOUBLE:  # 6 of its 16 bytes are left as they were
        return digest(canonical([repr(part) for part in array.ravel(order).tolist()]).encode())
    flat = np.asarray(array, order=order).ravel(order)
    return digest(flat.view(np.uint8).data if flat.size and flat.itemsize else b"")


def _dtype(dtype: Any) -> Identity:
    """Identity of a NumPy dtype.

    Raises `NotPlain` for metadata, and for dtypes whose bytes are not their values.
    """
    if dtype.metadata is not None:
        raise NotPlain(dtype, " with metadata")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_dtype(base), list(shape)]
    if dtype.names is not None:
        fields: list[Identity] = []
        for name in dtype.names:
            inner, offset, *title = dtype.fields[name]
            fields.append([name, _dtype(inner), offset, [str(each) for each in title]])
        return [dtype.itemsize, dtype.isalignedstruct, fields]
    if dtype.kind not in _NUMBERS:
        raise NotPlain(dtype, f" {dtype}")
    return str(dtype.str)


def _arrow(value: Any) -> Identity:
    if isinstance(value, pa.DataType):
        return _schema(pa.schema([pa.field("", value)]))
    if isinstance(value, pa.Field):
        return _schema(pa.schema([value]))
    if isinstance(value, pa.Schema):
        return _schema(value)
    if isinstance(value, pa.Array):
        return _array(value)
    if isinstance(value, pa.ChunkedArray):
        return [_arrow(value.type), [_array(chunk) for chunk in value.chunks]]
    if isinstance(value, pa.RecordBatch | pa.Table):
        return [_schema(value.schema), value.num_rows, [_arrow(column) for column in value.columns]]
    raise NotPlain(value)


def _schema(schema: pa.Schema) -> str:
    _refuse_foreign([field.type for field in schema])
    return digest(memoryview(schema.serialize()))


def _refuse_foreign(types: Sequence[pa.DataType]) -> None:
    """Raise `NotPlain` for an extension type of the user's own.

    Its methods may do anything.
    """
    for kind in types:
        if type(kind).__module__ != "pyarrow.lib":
            raise NotPlain(kind)
        if isinstance(kind, pa.BaseExtensionType):
            _refuse_foreign([kind.storage_type])
        elif pa.types.is_dictionary(kind):
            _refuse_foreign([kind.index_type, kind.value_type])
        elif pa.types.is_run_end_encoded(kind):
            _refuse_foreign([kind.value_type])
        else:
            _refuse_foreign([kind.field(place).type for place in range(kind.num_fields)])


def _array(array: pa.Array) -> Identity:
    # A stream: a batch by itself has the indices of dictionaries, and not their values.
    schema = pa.schema([pa.field("", array.type)])
    identity = _schema(schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays([array], schema=schema))
    return [identity, len(array), digest(memoryview(sink.getvalue()))]
