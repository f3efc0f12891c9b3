"""Identities of plain data.

Equal values give equal JSON in every process.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Identity: TypeAlias = str | int | bool | list["Identity"] | dict[str, "Identity"] | None

_BY_REPR = (
    *(bool, int, float, complex, str, bytes, bytearray, range, slice, type(Ellipsis)),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal),
)
_LONGEST_REPR = 200


class NotPlain(TypeError):
    """A value whose content has no identity."""

    def __init__(self, value: object) -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__}")


def value_identity(value: Any, item: Callable[[Any], Identity] | None = None) -> Identity:
    """Identity of `value`.

    Takes None, bools, numbers, strings, bytes, dates, patterns, NumPy and Arrow data, and lists, tuples, dicts and
    sets. Items of those go through `item`. Raises `NotPlain` for everything else.
    """
    item = item or value_identity
    kind = type(value)
    if value is None:
        return None
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


def digest(data: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def _leaf(value: Any, item: Callable[[Any], Identity]) -> Identity:
    if type(value) in _BY_REPR:
        text = repr(value)
        return text if len(text) <= _LONGEST_REPR else digest(text.encode())
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise NotPlain(value)
        return [str(array.dtype.descr), list(array.shape), digest(np.ascontiguousarray(array).tobytes())]
    if isinstance(value, np.dtype | pa.DataType | pa.Field | pa.Schema):
        return str(value)
    if isinstance(value, re.Pattern):
        return [item(value.pattern), value.flags]
    if isinstance(value, pa.Array):
        batch = pa.RecordBatch.from_arrays([value], names=["value"])
        return [str(value.type), digest(batch.serialize().to_pybytes())]
    raise NotPlain(value)
