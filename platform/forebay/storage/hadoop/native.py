"""The package hdfs-native.

A forked child loads a copy of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

_PACKAGE = "hdfs_native"

_lock = threading.Lock()
_is_inherited = False
_copy: ModuleType | None = None


def hdfs_native() -> ModuleType:
    """Return the package hdfs-native.

    In a child that was forked after its parent had loaded it, a copy (12-20 ms, 17 MB).

    The module keeps connections to DataNodes for 3 s after a read. A forked child would go on with those of its
    parent: it hangs, since it does not poll them, and one could read the answer to the other. The copy has none.

    Raises `ImportError` if the package is not installed.
    """
    global _copy  # noqa: PLW0603 - loaded once per process, as modules are
    import hdfs_native as installed  # noqa: PLC0415 - optional extra

    if not _is_inherited:
        return installed
    with _lock:
        if _copy is None:
            _copy = _copied(installed)
        return _copy


def _copied(installed: ModuleType) -> ModuleType:
    # A copy of the files: the linker loads one file only once.
    source = Path(str(installed.__file__)).parent
    name = f"{_PACKAGE}_of_{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="forebay-") as scratch:
        folder = Path(shutil.copytree(source, Path(scratch, _PACKAGE)))
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def _begin_anew() -> None:
    global _lock, _is_inherited, _copy  # noqa: PLW0603 - another thread may hold the lock in the moment of a fork
    _lock, _copy = threading.Lock(), None
    _is_inherited = _PACKAGE in sys.modules


os.register_at_fork(after_in_child=_begin_anew)
