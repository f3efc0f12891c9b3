"""Live pages, and a server that shows them to this machine only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forebay.errors import InvalidOption
from forebay.report.elements import element
from forebay.report.page import document, fragment
from forebay.storage.credentials import redact

KEEP_POSITION = """
history.scrollRestoration = "manual";
const scrolling = () => [document.scrollingElement, ...document.querySelectorAll(".wide")];
const positions = JSON.parse(sessionStorage.getItem("forebay") || "{}");
scrolling().forEach(each => each.scrollTo(...(positions[each.ariaLabel] || [0, 0])));
addEventListener("pagehide", () => sessionStorage.setItem("forebay", JSON.stringify(Object.fromEntries(
  scrolling().map(each => [each.ariaLabel, [each.scrollLeft, each.scrollTop]])))));
"""
"""Scrolls the page and its wide tables to where they were before, by the storage of the tab. A browser would do so for
the page alone, and show its top after a page with an error.
"""
# A page in a hidden tab waits until it is seen.
_RELOAD = """
const reload = () => location.reload();
setTimeout(() => document.hidden ? addEventListener("visibilitychange", reload, { once: true }) : reload(), AFTER_MS);
"""


def reload_script(after_s: float) -> str:
    """Script that reloads its page after `after_s` seconds."""
    return _RELOAD.replace("AFTER_MS", str(round(1e3 * after_s)))


EVERY_S = 5.0
"""Time between two readings. Drivers record every 15 s, when training begins, and at the end of each epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """HTML document. `is_error`: the record could not be read."""

    text: str
    is_error: bool = False


class CachedPage:
    """Page that is made at most every `every_s` seconds.

    `make` makes it, however many threads ask for it.
    """

    def __init__(
        self, make: Callable[[], LivePage], every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make, self._every_s, self._clock = make, every_s, clock
        self._lock = threading.Lock()
        self._page: LivePage | None = None
        self._made_at = 0.0

    def __call__(self) -> LivePage:
        """Return the page.

        Threads wait while one of them makes it.
        """
        with self._lock:
            if self._page is None or self._clock() - self._made_at >= self._every_s:
                self._page = self._make()
                # After it was made: a slow storage gets its pause too.
                self._made_at = self._clock()
            return self._page


def error_page(title: str, error: Exception, reload_s: float) -> LivePage:
    """Page in the place of one that could not be made. It tries again."""
    text = element("p", redact(str(error)), class_="notice failed")
    again = element("p", f"This page tries again every {reload_s:g} s.", class_="quiet")
    content = fragment(title, text, again)
    return LivePage(text=document("forebay", content, reload_script(reload_s)), is_error=True)


HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
# A browser opens connections ahead of need: each has a thread until it ends.
_IDLE_S = 30.0


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/`, to this machine only.

    It calls `page` for the content, and `others` for every other path: None is not found. `port` 0 takes a free one.

    Raises `InvalidOption` if the port cannot be used.
    """

    daemon_threads = True

    def __init__(
        self,
        page: Callable[[], LivePage],
        port: int,
        others: Callable[[str], LivePage | None] = lambda _: None,
    ) -> None:
        self.page, self.others = page, others
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
        else:
            page = self.server.page() if self.path == "/" else self.server.others(self.path)
            if page is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(page)

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
        """Log nothing: each open tab sends requests every few seconds."""
