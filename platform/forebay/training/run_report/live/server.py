"""Server of one page on this machine, from the standard library."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forebay.errors import InvalidOption
from forebay.training.run_report.live.live_page import LivePage

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
# A browser opens connections ahead of need: each has a thread until it ends.
_IDLE_S = 30.0


class PageServer(ThreadingHTTPServer):
    """Serves what `page` returns at `/`, to this machine only. `port` 0 takes a free one.

    Raises `InvalidOption` if the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, page: Callable[[], LivePage], port: int) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            raise InvalidOption(
                f"--port {port} cannot be used on {HOST} ({error.strerror}). Give another --port, or --port 0 for a "
                "free one.",
                port=port,
            ) from error

    @property
    def url(self) -> str:
        """Address for a browser on this machine."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Answer(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: PageServer
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Send the page.

        A browser that asks for it by another name does so for the page of another site, whose name was made to mean
        this machine.
        """
        if self.headers.get("Host", HOST).partition(":")[0] not in _NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "Open the page as localhost or 127.0.0.1")
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(self.server.page())

    def _send(self, page: LivePage) -> None:
        content = page.text.encode()
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if page.is_error else HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        with suppress(ConnectionError):  # the tab was closed
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: each open tab asks every few seconds."""
