"""Numba, as the kernels use it.

`kernel` and `part` say the types of a function. `compile_kernel` compiles, and nothing before. Only functions that
Python calls get a wrapper for that. So a kernel of twenty parts takes 2 CPU seconds in place of 6.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock

from forebay.data.kernels import intrinsics

_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_signatures: dict[Any, Any] = {}
"""Types of each function that `kernel` and `part` decorate."""


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that Python and other kernels call."""
    return _decorator(signature)


def part(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that only kernels call."""
    return _decorator(signature, no_cpython_wrapper=True)


def _decorator(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    def decorated(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**_OPTIONS, **options)(function)
        _signatures[dispatcher] = signature
        return dispatcher

    return decorated


def digest(function: Any) -> str:
    """Digest of all that the machine code of a kernel depends on.

    Its types, the sources of its parts, the versions, the processor, and the settings of Numba.
    """
    found = hashlib.sha256(_platform() + repr(_signatures[function]).encode())
    for module in sorted({each.py_func.__module__ for each in _reached(function)} | {__name__, intrinsics.__name__}):
        found.update(_source(module))
    return found.hexdigest()[:20]


@cache
def _platform() -> bytes:
    processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), platform.machine(), sys.platform
    settings = {name: value for name, value in vars(numba.config).items() if name in _SETTINGS}
    versions = numba.__version__, llvmlite.__version__, sys.version_info[:3]
    return repr((processor, sorted(settings.items()), versions)).encode()


_SETTINGS = {"CPU_NAME", "CPU_FEATURES", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "DEBUGINFO_DEFAULT"}


@cache
def _source(module: str) -> bytes:
    return inspect.getsource(sys.modules[module]).encode()


def _reached(function: Any) -> Iterator[Any]:
    """The function, and all that it calls."""
    waiting, seen = [function], {function}
    while waiting:
        yield (each := waiting.pop())
        new = [called for called in _called(each) if called not in seen]
        seen.update(new)
        waiting += new


def _called(function: Any) -> list[Any]:
    names, there = function.py_func.__code__.co_names, function.py_func.__globals__
    found = (there.get(name) for name in dict.fromkeys(names))
    return [each for each in found if isinstance(each, type(function)) and each in _signatures]


def compile_kernel(function: Any) -> None:
    """Compile a kernel with its parts."""
    with global_compiler_lock:
        _compile(function)


def _compile(function: Any) -> None:
    # Each function has one signature. Numba alone would compile a part again for each literal that it is called with.
    for each in _called(function):
        _compile(each)
    if not function.overloads:
        function.compile(_signatures[function])
        function.disable_compile()


def save(function: Any, name: str, folder: str) -> None:
    """Write the machine code of a kernel. Raises `OSError`."""
    (compiled,) = function.overloads.values()
    _file(name, folder).save(_KEY, compiled._reduce())  # noqa: SLF001 - private, seen in Numba 0.61 to 0.68


def load(function: Any, name: str, folder: str) -> None:
    """Make a kernel callable by what `save` wrote."""
    with global_compiler_lock:
        context = function.targetctx
        context.refresh()
        parts = _file(name, folder).load(_KEY)
        compiled = CompileResult._rebuild(context, *parts)  # noqa: SLF001 - private, seen in Numba 0.61 to 0.68
        context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        function.add_overload(compiled)
        function.disable_compile()


_KEY = "kernel"


def _file(name: str, folder: str) -> Any:
    # Numba writes a file whole or not at all. Its stamp is not used: the name has the digest.
    return IndexDataCacheFile(folder, name, source_stamp="")
