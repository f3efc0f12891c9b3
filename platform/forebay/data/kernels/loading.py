"""Loading of compiled functions.

The first process of a machine that needs one compiles it, the others wait for it and load it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any, TypeAlias

from forebay.data.kernels.kernel_files import KernelFiles, kernel_files
from forebay.errors import LimitReached
from forebay.runtime.foreign_code import begin

Place: TypeAlias = tuple[Callable[[], ModuleType], str]
"""Import of a module, and the name of a function there."""

_SILENT_S, _SILENT_WAIT_S = 1.0, 10.0
_MOST_WAIT_S = 60.0
_POLL_S = 0.02
_MOST_HELPERS = 3

_lock = threading.RLock()
# A child that was forked while another thread compiled would always wait for the locks of the compiler.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def load_functions(places: Sequence[Place]) -> list[Callable[..., Any]]:
    """Load functions of modules, and compile the ones missing on this machine."""
    with _lock, ExitStack() as undo:
        return _Loading(kernel_files(), places, undo).run()


def help_compile(places: Sequence[Place]) -> None:
    """Compile kernels that no other process compiles. The program of a helper."""
    with ExitStack() as undo:
        _Loading(kernel_files(), places, undo, is_helper=True).run()


class _Loading:
    """Loading of functions by this process."""

    def __init__(
        self, files: KernelFiles, places: Sequence[Place], undo: ExitStack, *, is_helper: bool = False
    ) -> None:
        self._files, self._places, self._undo, self._has_begun = files, places, undo, is_helper
        self._late_at = time.monotonic() + _MOST_WAIT_S

    def run(self) -> list[Callable[..., Any]]:
        functions = [(name, getattr(module(), name)) for module, name in self._places]
        waiting = functions
        while waiting:
            left = [each for each in waiting if not self._load(*each)]
            if len(left) == len(waiting):
                time.sleep(_POLL_S)
            waiting = left
        return [function for _, function in functions]

    def _load(self, name: str, function: Any) -> bool:
        """Load or compile a function. False if another process is compiling it."""
        from forebay.data.kernels import compiler  # noqa: PLC0415 - Numba takes 0.3 s

        if function.overloads:
            return True
        name = f"{name}-{compiler.digest(function)}"
        folder = self._files.find(name)
        if folder is None:
            with self._files.claim(name) as is_mine:
                self._begin(is_mine)
                # One that compiles may have been stopped: after a while, compiling twice is better than waiting.
                if not is_mine and time.monotonic() < self._late_at:
                    return False
                folder = self._files.find(name)
                if folder is None:
                    compiler.compile_kernel(function)
                    self._files.write(name, lambda target: compiler.save(function, name, str(target)))
        if folder is not None:
            compiler.load(function, name, str(folder))
        return True

    def _begin(self, is_compiling: bool) -> None:
        """Start helpers and the progress line, before the first compilation or wait.

        Many processes start at once, on the cores of one machine and often on one terminal: the first one does so.
        """
        if self._has_begun:
            return
        self._has_begun = True
        is_first = is_compiling and self._undo.enter_context(self._files.claim("first"))
        self._undo.enter_context(_progress(len(self._places), self._files, _SILENT_S if is_first else _SILENT_WAIT_S))
        if is_first:
            self._undo.enter_context(_helpers(self._places))


@contextmanager
def _progress(num_kernels: int, files: KernelFiles, silent_s: float) -> Iterator[None]:
    """Print a line after `silent_s`, and one at the end."""
    began, has_said = time.monotonic(), threading.Event()

    def say() -> None:
        has_said.set()
        kept = f"kept in {files.target}" if files.target else "kept nowhere"
        _say(
            f"compiling {num_kernels} kernel{'s' * (num_kernels != 1)}, once for this version and processor, {kept} ..."
        )

    timer = threading.Timer(silent_s, say)
    timer.daemon = True
    with suppress(LimitReached):
        begin(timer)
    try:
        yield
    finally:
        timer.cancel()
        if has_said.is_set():
            _say(f"compiled in {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    print(f"forebay: {text}", file=sys.stderr, flush=True)


@contextmanager
def _helpers(places: Sequence[Place]) -> Iterator[None]:
    """Let other cores compile from the other end of the list.

    Numba compiles in one thread at a time, so these are processes.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):  # no room for another process
            while len(helpers) < min(cores - 1, len(places) - 1, _MOST_HELPERS):
                helpers.append(_helper(places[::-1]))
        yield
    finally:
        for each in helpers:  # what it compiles is loaded already
            each.kill()
            each.wait()


def _helper(places: Sequence[Place]) -> subprocess.Popen[bytes]:
    modules = sorted({module().__name__ for module, _ in places})
    named = ", ".join(f"(lambda: {module().__name__}, {name!r})" for module, name in places)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import {', '.join(modules)}; from {__name__} import help_compile; "
        f"help_compile([{named}])"
    )
    return subprocess.Popen(  # noqa: S603 - this program, and names of this package
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
