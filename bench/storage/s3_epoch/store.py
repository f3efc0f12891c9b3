"""S3 stand-in that counts requests and bytes: moto's server behind a counter.

python -m bench.storage.s3_epoch.store     # prints its port, then serves until its input ends

`GET /-/counts` returns the counts since the start. Every request is sorted as the price list sorts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from bench.processes import command, environment

BUCKET = "bucket"
_COUNTS = "/-/counts"
Counts = dict[str, int]
"""Requests by kind (GET, HEAD, LIST, PUT, POST, DELETE), and `sent` and `received` bytes of objects."""


def counts_of(endpoint: str) -> Counts:
    """Counts since the server began."""
    with urllib.request.urlopen(f"http://{endpoint}{_COUNTS}", timeout=60) as answer:
        found: Counts = json.load(answer)
    return found


def since(after: Mapping[str, int], before: Mapping[str, int]) -> Counts:
    """Counts between two readings."""
    return {name: total - before.get(name, 0) for name, total in after.items() if total != before.get(name, 0)}


def kind_of(method: str, path: str, query: str) -> str:
    """Kind of a request: its method, or LIST for a GET of a bucket's keys."""
    key = path.lstrip("/").partition("/")[2]
    return "LIST" if method == "GET" and not key and "location" not in parse_qs(query, True) else method


class Counting:
    """WSGI application that counts what passes to another one."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app, self._lock, self._counts = app, threading.Lock(), Counter[str]()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            with self._lock:
                return [json.dumps(self._counts).encode()]
        kind = kind_of(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        received = 0
        if kind == "PUT":
            length = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or 0
            received = int(length)

        def started(status: str, headers: list[tuple[str, str]], *others: Any) -> Any:
            told = {name.lower(): value for name, value in headers}
            sent = int(told.get("content-length", 0)) if kind == "GET" and status[:1] == "2" else 0
            with self._lock:  # before the client has the bytes: its next request may be for the counts
                self._counts.update({kind: 1, "sent": sent, "received": received})
            return start_response(status, headers, *others)

        return self._app(environ, started)


@contextmanager
def serving() -> Iterator[str]:
    """Address of a server in a process of its own, until the context ends."""
    line = command("bench.storage.s3_epoch.store")
    with subprocess.Popen(  # noqa: S603
        line, env=environment("AWS_"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def main() -> None:
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - clients import this file without moto
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415

    class QuietHandler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None: ...

    app = Counting(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=QuietHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
