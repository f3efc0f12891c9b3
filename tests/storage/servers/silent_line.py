"""TCP proxy whose connections can fall silent.

As behind a firewall that forgets them: nothing comes back.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class SilentLine:
    """Proxy on 127.0.0.1 to `port`.

    New connections work after `silence`, earlier ones stay open without an answer.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._links: list[socket.socket] = []
        self._forgotten: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._forgotten.update(self._links)

    def close(self) -> None:
        for link in (self._listening, *self._links):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                pair = self._listening.accept()[0], socket.create_connection(("127.0.0.1", self._target))
                self._links.extend(pair)
                for source, target in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if source not in self._forgotten:
                    target.sendall(data)
