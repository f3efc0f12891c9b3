"""Detects a user function that returns memory to which it will write again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial

import numpy as np

from forebay.errors import TransformFailed

_returned: dict[int, weakref.ref[np.ndarray]] = {}


def refuse_reused(function: str, values: Iterable[object]) -> None:
    """Raise `TransformFailed` for a writable array that an earlier call has returned and that is still in use.

    Several threads keep blocks while others are made. A buffer that is filled again for every row group would change
    rows that were already returned.
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
    """Array whose memory `value` is a view of, or `value` itself. None if it is not writable."""
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return value if isinstance(value, np.ndarray) and value.flags.writeable else None


def _forget(key: int, _dead: weakref.ref[np.ndarray]) -> None:
    _returned.pop(key, None)
