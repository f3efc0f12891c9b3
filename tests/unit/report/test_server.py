"""Server of one page: to this machine only, never kept by the browser, and clear about a port that is taken."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from forebay.errors import InvalidOption
from forebay.report.server import LivePage, PageServer


@contextmanager
def serving(page: Callable[[], LivePage]) -> Iterator[PageServer]:
    with PageServer(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answer(server: PageServer, path: str = "/", host: str | None = None) -> tuple[http.client.HTTPResponse, str]:
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    client.request("GET", path, headers={"Host": host} if host else {})
    found = client.getresponse()
    text = found.read().decode()
    client.close()
    return found, text


@pytest.mark.parametrize(("is_error", "status"), [(False, 200), (True, 503)])
def test_the_page_is_never_stored(is_error: bool, status: int) -> None:
    with serving(lambda: LivePage(text="ü", is_error=is_error)) as server:
        found, text = answer(server)
    assert (found.status, text, found.headers["Cache-Control"]) == (status, "ü", "no-store")
    assert found.headers["Content-Type"] == "text/html; charset=utf-8" and server.server_address[0] == "127.0.0.1"


def test_only_the_page_is_served_and_only_by_names_of_this_machine() -> None:
    with serving(lambda: LivePage(text="page")) as server:
        status = {host: answer(server, host=host)[0].status for host in ("localhost:9", "localhost", "evil.example:80")}
        other = answer(server, "/../result.json")[0].status
    assert status == {"localhost:9": 200, "localhost": 200, "evil.example:80": 403} and other == 404


def test_another_page_is_found_by_its_path_and_by_the_same_names() -> None:
    def others(path: str) -> LivePage | None:
        return LivePage(text="run") if path == "/run/a" else None

    with PageServer(lambda: LivePage(text="jobs"), 0, others) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = {path: answer(server, path)[0].status for path in ("/", "/run/a", "/run/b", "/run/../a", "//evil/")}
        refused = answer(server, "/run/a", host="evil.example")[0].status
        server.shutdown()
        thread.join()
    assert found == {"/": 200, "/run/a": 200, "/run/b": 404, "/run/../a": 404, "//evil/": 404}
    assert refused == 403


def test_a_taken_port_names_the_option() -> None:
    with (
        PageServer(lambda: LivePage(text=""), 0) as server,
        pytest.raises(InvalidOption, match=rf"--port {server.server_port} cannot be used.*in use.*--port 0 for a free"),
    ):
        PageServer(lambda: LivePage(text=""), server.server_port)
