"""One fork server for the runs of many tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from forebay.runtime.fork_server import ForkServer
from forebay.training.driver.local.driver import worker_program


class KeptForkServer(ForkServer):
    """A fork server that outlives the run that started it, and serves the next one.

    It starts again after its own death, and when the environment, folder or import path has changed since its start.
    """

    def __init__(self) -> None:
        super().__init__(worker_program())
        self._started_in: object = None

    @property
    def pid(self) -> int | None:
        """Process id of the server, None before its first start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        here = _surroundings()
        if here != self._started_in:
            self.end()
        self._started_in = here
        super().start()

    def close(self) -> None:
        """Keep the server, though the run has ended. A dead one is reaped at the next start."""
        if self._process is not None and self._process.poll() is not None:
            self.end()

    def end(self) -> None:
        """End the server, after the last test."""
        super().close()
        self._process = None


def _surroundings() -> object:
    changing = {"PYTEST_CURRENT_TEST"}
    return {name: text for name, text in os.environ.items() if name not in changing}, list(sys.path), Path.cwd()
