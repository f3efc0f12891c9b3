"""Workers of Ray that fork from a process that has imported what they need.

A worker of Ray imports PyTorch, Arrow and what Ray depends on: 3 CPU seconds. Forked, it imports Ray alone.
`make test` forks them. `make test-all` lets Ray start its workers itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from ray._private import services
from tests.preloaded import client, server

WANTED = "FOREBAY_PRELOAD"
"""Variable of the environment that asks for forked workers."""


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let each Ray that this process starts fork its workers, if that is wanted.

    The server starts with the first Ray.
    """
    if WANTED not in os.environ:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ends:
        patch.setattr(services, "sys", SystemOfRay(ends))
        yield


class SystemOfRay:
    """Module `sys` as Ray's starts of processes see it, with another `executable`."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends

    @cached_property
    def executable(self) -> str:
        python = PreloadedPython()
        self._ends.callback(python.end)
        return str(python.executable)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class PreloadedPython:
    """Server that has imported `modules`. `executable` runs as `python` does, but forks the scripts of Ray from it."""

    def __init__(self, modules: Sequence[str] = server.MODULES) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="python-")
        folder = Path(self._folder.name)
        address = folder / "socket"
        self.executable = folder / "python"
        text = Path(client.__file__).read_text()
        self.executable.write_text(
            f"#!{Path(sys.executable).resolve()} -IS\n{text}\nrun({str(address)!r}, {sys.executable!r})\n"
        )
        self.executable.chmod(0o700)
        words = [sys.executable, "-m", server.__name__, str(address), *modules]
        root = Path(__file__).parents[2]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout is not None
        assert self._process.stdout.read(1) == b"+", "the server of preloaded processes does not start"

    def end(self) -> None:
        """End it and all that it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()
