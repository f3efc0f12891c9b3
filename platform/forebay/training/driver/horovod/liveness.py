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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from forebay.training.driver.elastic.pool import Connected, Lost

CONNECT_S = 30.0
POLL_S = 0.1
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
        lines = self

        class Line(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                keep_alive(self.request)
                hello = _hello(self.rfile.readline, token)
                if hello is not None and lines._opened(hello["name"], self.request):
                    tell(Connected(name=hello["name"], node=hello["node"]))
                    _listen(self.rfile.readline, hello["name"], tell)
                    lines._lost(hello["name"])
                    tell(Lost(name=hello["name"]))

        self._server = socketserver.ThreadingTCPServer((host, 0), Line)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="forebay-lines", daemon=True
        )
        self._thread.start()
        self.address = LineAddress(host=host, port=self._server.server_address[1], token=token)

    @property
    def names(self) -> list[str]:
        """Names of the workers whose processes run."""
        with self._lock:
            return list(self._open)

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
            left = list(self._open.values())
        for line in left:
            _hang_up(line)

    def _opened(self, name: str, line: socket.socket) -> bool:
        with self._lock:
            if not self._is_closed:
                self._open[name] = line
            return not self._is_closed

    def _lost(self, name: str) -> None:
        with self._lock:
            del self._open[name]


def _hello(next_line: Callable[[], bytes], token: str) -> dict[str, str] | None:
    try:
        hello = json.loads(next_line() or b"{}")
        return hello if hmac.compare_digest(str(hello.get("token")), token) else None
    except (OSError, ValueError):
        return None  # the peer is not a worker of this run


def _listen(next_line: Callable[[], bytes], name: str, tell: Callable[[LivenessMessage], None]) -> None:
    # A connection that was reset counts as closed.
    with suppress(OSError):
        while line := next_line():
            tell(Entered(name=name, world=int(line)))


def _hang_up(line: socket.socket) -> None:
    """Close the driver's direction of a connection.

    The worker reads end of file. Its own direction stays open until its process ends.
    """
    with suppress(OSError):
        line.shutdown(socket.SHUT_WR)


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
        threading.Thread(target=self._wait, name="forebay-lifeline", daemon=True).start()

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
