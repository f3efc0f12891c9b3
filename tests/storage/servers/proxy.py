"""An HTTP proxy that misbehaves on request.

Run as `python proxy.py PORT UPSTREAM_PORT`.

`POST /-/faults` with a JSON list of faults replaces those before it. `GET /-/faults` returns how often each occurred. A
fault has `method`, `kind` (`status`, `delay`, `cut`, `stale`), `times` (-1: always), and `status`, `code` or `seconds`.
A stale answer is a list of objects as it was when it was last asked for.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message><RequestId>1</RequestId></Error>"
FAULTS: list[dict[str, Any]] = []
LOCK = threading.Lock()
LISTS: dict[str, tuple[int, dict[str, str], bytes]] = {}


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as in webhdfs.py
    upstream: int

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        body = self._body()
        if self.path == "/-/faults":
            self._control(body)
            return
        fault = self._next_fault()
        if fault.get("kind") == "delay":
            time.sleep(fault["seconds"])
        if fault.get("kind") == "status":
            content = ERROR.format(code=fault["code"]).encode()
            self._send(fault["status"], {"Content-Type": "application/xml"}, content, len(content))
            return
        status, headers, content = answer = self._ask(body)
        if self.command == "GET" and "list-type" in self.path:
            if fault.get("kind") == "stale":
                status, headers, content = LISTS.get(self.path, answer)
            else:
                LISTS[self.path] = answer
        length = int(headers.get("Content-Length", len(content)))
        if fault.get("kind") == "cut":
            self._send(status, headers, content[: len(content) // 2], length)
            self.close_connection = True
        else:
            self._send(status, headers, content, length)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names of http.server

    def _body(self) -> bytes:
        """Whole body of the request. AWS's client sends checksums after it, in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        del self.headers["Transfer-Encoding"]
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _control(self, body: bytes) -> None:
        with LOCK:
            if self.command == "POST":
                FAULTS[:] = [fault | {"shown": 0} for fault in json.loads(body)]
            content = json.dumps(FAULTS).encode()
        self._send(200, {}, content, len(content))

    def _next_fault(self) -> dict[str, Any]:
        with LOCK:
            for fault in FAULTS:
                if fault.get("method", self.command) == self.command and fault["shown"] != fault.get("times", -1):
                    fault["shown"] += 1
                    return fault
        return {}

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        headers = dict(self.headers) | ({"Content-Length": str(len(body))} if body else {})
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def _send(self, status: int, headers: dict[str, str], content: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


if __name__ == "__main__":
    Proxy.upstream = int(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Proxy).serve_forever()
