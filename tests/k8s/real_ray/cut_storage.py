"""An S3 server, and a way to it per cluster.

A way can be cut: bytes are kept back, and connections stay open.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay.testing.drivers.ray_processes import free_ports

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTEST",
    "AWS_SECRET_ACCESS_KEY": "s3-secret-of-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server(log: Path) -> Iterator[int]:
    """Start an S3 server with the bucket "lake".

    Returns its port.
    """
    (port,) = free_ports(1)
    with log.open("wb") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 60
        while not _answers(port):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


def environment(port: int) -> dict[str, str]:
    """Return variables that lead to the server."""
    return CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


class CuttableWay:
    """TCP proxy to a port.

    While it is cut, it accepts connections and passes nothing on.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Pass nothing on from now."""
        self._is_open.clear()

    def restore(self) -> None:
        """Pass bytes on again.

        Connections of before are closed: their clients have given up or connect again.
        """
        for each in list(self._sockets):
            with suppress(OSError):
                each.close()
        self._is_open.set()

    def close(self) -> None:
        self._listening.close()
        self.restore()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        self._is_open.wait()
        with suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.add(server)
            threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
            self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._is_open.wait()
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                self._sockets.discard(each)
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def use(port: int) -> None:
    """Let this process find the server."""
    os.environ.update(environment(port))
