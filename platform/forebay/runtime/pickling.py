"""Pickling for other processes of the same program.

They may be unable to import the user's own code.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import types
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import cloudpickle

from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.installed import is_own

_NO_FILE = "<dynamic-code>"
_REGISTERING = threading.RLock()
"""Held while modules are in cloudpickle's list, which is one for all threads: another would take them out."""
os.register_at_fork(
    before=_REGISTERING.acquire, after_in_parent=_REGISTERING.release, after_in_child=_REGISTERING.release
)


@contextmanager
def own_code_by_value(pickler: Any = cloudpickle) -> Iterator[None]:
    """Pickle the user's own modules by value in the block.

    These are a job loaded by path, a notebook's neighbours, or a test.

    Modules of Python, of installed packages and of Forebay are pickled by name. cloudpickle pickles `__main__` by value
    anyway. `pickler` is the module that pickles: Ray has a cloudpickle of its own, with its own list.
    """
    already = pickler.list_registry_pickle_by_value()
    own = [
        module
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None)
        and getattr(module, "__name__", None) == name
        and name.partition(".")[0] not in ("__main__", "forebay")
        and name not in already
        and is_own(name)
    ]
    for module in own:
        pickler.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            pickler.unregister_pickle_by_value(module)


class NotPicklable(TypeError):
    """A value that cannot be pickled.

    The text has the reason.
    """


def pickled(value: object) -> bytes:
    """Pickle `value` for another process of this program.

    The user's own code goes by value.

    Raises `NotPicklable`, whatever the value's own code raises.
    """
    refused = replaced_errors(lambda error: NotPicklable(f"{type(error).__name__}: {error}"))
    with _REGISTERING, own_code_by_value(), refused:
        return dumps(value)


def dumps(value: object) -> bytes:
    """Pickle `value` as cloudpickle does, with the files of functions.

    cloudpickle calls every file `<dynamic-code>`. An error would not say where it was raised.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _reduced_with_file(code: types.CodeType) -> tuple[Any, ...]:
    kind, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return kind, tuple(code.co_filename if each == _NO_FILE else each for each in arguments)


def unpickled(data: bytes) -> Any:
    """Load a pickle of another process of this program."""
    return cloudpickle.loads(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, with another reduction of code."""

    dispatch_table: ClassVar = ChainMap({types.CodeType: _reduced_with_file}, cloudpickle.Pickler.dispatch_table)
