"""Connections to hosts of others, and openings of files of others, which a scan makes by mistake."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENED = 0x20 | 0x1  # IN_OPEN | IN_ACCESS


class Watch:
    """Files and a port that nothing may touch."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._notices = self._libc.inotify_init1(os.O_NONBLOCK)
        self.folder = folder
        self._server = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, path: Path) -> None:
        assert self._libc.inotify_add_watch(self._notices, os.fsencode(path), _OPENED) >= 0

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections += 1
            connection.close()

    def touched(self) -> list[str]:
        """Return what was touched since the last call."""
        found = ["a connection"] * self._connections
        self._connections = 0
        try:
            os.read(self._notices, 1 << 16)
            found.append("a file")
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        self._server.close()
        os.close(self._notices)


@contextmanager
def watching(folder: Path) -> Iterator[Watch]:
    watch = Watch(folder)
    try:
        yield watch
    finally:
        watch.close()
