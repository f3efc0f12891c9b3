"""TCP connection between each worker and the driver.

It closes when either of the two processes ends. The kernel closes it within milliseconds of a process's death. Ray
takes seconds to notice a lost node. The worker sends its name, its node, and the number of each world that it has
entered.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, KeysView
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from forebay.runtime.foreign_code import begin
from forebay.training.driver.elastic.pool import Connected, Lost

CONNECT_S = 30.0
POLL_S = 0.1
HELLO_S = 5.0
"""Time of a peer for its hello. A worker sends it at once."""
MOST_SILENT = 4096
"""Connections without a hello. Beyond them the oldest is closed: each has a thread of the driver. All workers of a run
may connect at the same time.
"""
MOST_BYTES = 4096
"""Longest line that is read."""
_CHUNK_BYTES = 1 << 16
_DIGITS = 20
# A machine that loses its power closes no connection: keepalive probes give it up after some 20 s.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The worker has met the other ranks.

    `world` is the number of its world.
    """

    name: str
    world: int


LivenessMessage = Connected | Entered | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAddress:
    """Address of the driver's server, and its token.

    By the token it recognizes its workers.
    """

    host: str
    port: int
    token: str


class LivenessServer:
    """The driver's side.

    Calls `tell` from its threads with every message of a worker. The last one is `Lost`.
    """

    def __init__(self, host: str, tell: Callable[[LivenessMessage], None]) -> None:
        token = secrets.token_hex(16)
        self._open: dict[str, socket.socket] = {}
        self._is_closed = False
        self._lock = threading.Lock()
        self._silent: dict[int, socket.socket] = {}
        lines = self

        class Line(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                heard = _Lines(self.request)
                hello = lines._greeted(self.request, heard, token)
                if hello is None or not lines._opened(hello.name, self.request):
                    return
                tell(Connected(name=hello.name, node=hello.node))
                try:
                    _listen(heard, hello.name, tell)
                finally:
                    lines._lost(hello.name)
                    tell(Lost(name=hello.name))

        self._server = _LivenessSockets((host, 0), Line)
        serve = partial(self._server.serve_forever, POLL_S)
        self._thread = begin(threading.Thread(target=serve, name="forebay-lines", daemon=True))
        self.address = LineAddress(host=host, port=self._server.server_address[1], token=token)

    @property
    def names(self) -> KeysView[str]:
        """Names of the workers whose processes run."""
        return self._open.keys()

    def end(self, name: str) -> None:
        """Ask a worker to end itself, if it runs.

        `Lost` follows once it has.
        """
        with self._lock:
            line = self._open.get(name)
        if line is not None:
            _hang_up(line)

    def close(self) -> None:
        """Close the server, and end all workers.

        It accepts no new connections, and asks all running workers to end themselves.
        """
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            self._is_closed = True
            left, silent = list(self._open.values()), list(self._silent.values())
        for line in left:
            _hang_up(line)
        for line in silent:
            _shut(line, socket.SHUT_RDWR)

    def _greeted(self, line: socket.socket, heard: _Lines, token: str) -> _Hello | None:
        """Return the hello of a worker of this run.

        None: the peer sent something else, or nothing in time.
        """
        with self._lock:
            self._silent[id(line)] = line
            oldest = self._silent.pop(next(iter(self._silent))) if len(self._silent) > MOST_SILENT else None
        if oldest is not None:
            _shut(oldest, socket.SHUT_RDWR)
        try:
            keep_alive(line)
            return _hello(heard.next(time.monotonic() + HELLO_S), token)
        except (OSError, EOFError):
            return None
        finally:
            with self._lock:
                self._silent.pop(id(line), None)

    def _opened(self, name: str, line: socket.socket) -> bool:
        with self._lock:
            if self._is_closed or name in self._open:
                return False
            self._open[name] = line
            return True

    def _lost(self, name: str) -> None:
        with self._lock:
            del self._open[name]


class _LivenessSockets(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    # 5 by default: of workers that connect at the same time, the others would try again after 1, 3 and 7 s.
    request_queue_size = MOST_SILENT


@dataclass(frozen=True, slots=True)
class _Hello:
    name: str
    node: str


class _Lines:
    """Lines that a peer sends, none longer than `MOST_BYTES`."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer, self._read = peer, b""

    def next(self, deadline: float | None = None) -> bytes:
        """Return the next line, without its end.

        Raises `EOFError` if the peer closes or its line is too long, and `OSError`; at the monotonic time `deadline`
        `TimeoutError`, also if bytes arrive one by one.
        """
        is_long = False
        while b"\n" not in self._read:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._peer.settimeout(left)
            if not (more := self._peer.recv(_CHUNK_BYTES)):
                raise EOFError
            # The rest of a long line is dropped: to close while it arrives would look like a broken network.
            self._read = more if is_long else self._read + more
            is_long |= len(self._read) > MOST_BYTES and b"\n" not in self._read
        line, _, self._read = self._read.partition(b"\n")
        if is_long or len(line) > MOST_BYTES:
            raise EOFError
        return line


def _hello(line: bytes, token: str) -> _Hello | None:
    """Return the first message of this run's worker, or None."""
    try:
        match json.loads(line):
            case {"token": str(given), "name": str(name), "node": str(node)}:
                return _Hello(name, node) if hmac.compare_digest(given.encode(), token.encode()) else None
    except (ValueError, RecursionError):
        pass  # bytes of a stranger
    return None


def _listen(lines: _Lines, name: str, tell: Callable[[LivenessMessage], None]) -> None:
    """Tell of each world that a worker enters, until its connection ends.

    A connection that was reset, or that sends something else than numbers, counts as closed.
    """
    with suppress(OSError, EOFError):
        while (number := lines.next()).isdigit() and len(number) < _DIGITS:
            tell(Entered(name=name, world=int(number)))


def _hang_up(line: socket.socket) -> None:
    """Close the driver's direction of a connection.

    The worker reads end of file. Its own direction stays open until its process ends.
    """
    _shut(line, socket.SHUT_WR)


def _shut(line: socket.socket, directions: int) -> None:
    with suppress(OSError):  # the peer has closed it
        line.shutdown(directions)


class LivenessClient:
    """The worker's side.

    Ends this process when the driver has died or hangs up: its results would not be read.
    """

    def __init__(self, address: LineAddress, *, name: str, node: str) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        self._socket.settimeout(None)
        keep_alive(self._socket)
        hello = {"token": address.token, "name": name, "node": node}
        self._socket.sendall(json.dumps(hello).encode() + b"\n")
        begin(threading.Thread(target=self._wait, name="forebay-lifeline", daemon=True))

    def entered(self, world: int) -> None:
        """Report that this worker has met the other ranks.

        `world` is the number of their world.
        """
        self._socket.sendall(b"%d\n" % world)

    def _wait(self) -> None:
        try:
            while self._socket.recv(1):
                pass
        except OSError:
            pass
        os._exit(1)


def keep_alive(line: socket.socket) -> None:
    """Turn TCP keepalive on.

    So a machine that vanished without closing is noticed within half a minute.
    """
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):  # Linux; others have their own names
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
