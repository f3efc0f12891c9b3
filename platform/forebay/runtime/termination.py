"""SIGTERM as a request to end: by SLURM, Kubernetes or `kill`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from forebay.runtime.foreign_code import begin


class Termination:
    """Context manager that calls `act` at the first SIGTERM.

    In a thread: the signal may interrupt a line that holds a lock which `act` needs. Later signals change nothing,
    because SLURM sends one to every process of a job, and each passes it on. Outside the main thread, which alone
    receives signals, it does nothing.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._before: signal._HANDLER = signal.SIG_DFL
        self._is_installed = False
        self.is_asked = False

    def install(self) -> None:
        """Begin to listen, also in place of a handler that was installed since."""
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGTERM, self._ask)
            self._before = before if not self._is_installed and before is not None else self._before
            self._is_installed = True

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_installed:
            signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - of a handler
        if not self.is_asked:
            self.is_asked = True
            begin(threading.Thread(target=self._act, name="forebay-termination", daemon=True))
