"""Finding out that a user function hands out memory it will write to again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial

import numpy as np

from forebay.errors import TransformFailed

_returned: dict[int, weakref.ref[np.ndarray]] = {}


def refuse_reused(function: str, values: Iterable[object]) -> None:
    """Raises `TransformFailed` for a writable array that an earlier call has returned and that is still in use.

    Blocks are kept while others are made, by several threads: a buffer that is filled anew for every row group would
    change rows that were already handed out.
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
    """The array whose memory `value` is a view of, or `value` itself."""
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return value if isinstance(value, np.ndarray) and value.flags.writeable else None


def _forget(key: int, _dead: weakref.ref[np.ndarray]) -> None:
    _returned.pop(key, None)
