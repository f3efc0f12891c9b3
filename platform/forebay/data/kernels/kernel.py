"""Kernels: compiled functions, each loaded at its first call.

A process that moves no row - the command line, a driver, the controller of Ray Train - never calls one: Numba takes a
CPU second to import and to prepare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Kernel:
    """A compiled function of a module, which `module` imports.

    Attributes:
        call: Calls it, in place of a method: an epoch makes many calls. The first one loads it.
        is_loaded: Whether this process has loaded it.
    """

    __slots__ = ("call", "is_loaded", "module", "name")

    def __init__(self, module: Callable[[], ModuleType], name: str) -> None:
        self.module, self.name = module, name
        self.call: Callable[..., Any] = self._first_call
        self.is_loaded = False

    def _first_call(self, *arguments: Any) -> Any:
        load([self])
        return self.call(*arguments)


def load(kernels: Sequence[Kernel]) -> None:
    """Load kernels, and compile the ones missing on this machine.

    Several are compiled by several processes. Prints a line to stderr if that takes more than a second. Safe in any
    thread: a fork in another one waits for the end.
    """
    missing = [each for each in kernels if not each.is_loaded]
    if not missing:
        return
    from forebay.data.kernels.loading import load_functions  # noqa: PLC0415 - few processes get here

    functions = load_functions([(each.module, each.name) for each in missing])
    for each, function in zip(missing, functions, strict=True):
        each.call, each.is_loaded = function, True
