"""Stand-in of the Hugging Face Hub.

It has the HTTP API for repositories, and another host that serves the content.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Files = dict[str, bytes]


class HubServer:
    """Repositories by name, as commits of files. `requests` are paths with queries, `content_tokens` what the host of
    the content was sent.
    """

    def __init__(self) -> None:
        self.commits: dict[str, Files] = {}
        self.heads: dict[tuple[str, str], str] = {}
        self.token = ""
        self.page = 1000
        self.requests: list[str] = []
        self.content_tokens: list[str | None] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.closed_until = 0.0
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(part)) for part in (_answer, _content)]
        self.url, self.content_url = (f"http://127.0.0.1:{each.server_port}" for each in self._servers)
        self._threads = [threading.Thread(target=each.serve_forever, args=(0.05,)) for each in self._servers]
        for thread in self._threads:
            thread.start()

    def commit(self, files: Files, repository: str = "datasets/org/name", branch: str = "main") -> str:
        """Make `files` all files of a branch. Returns the commit."""
        commit = hashlib.sha1(f"{self.url} {len(self.commits)}".encode()).hexdigest()
        self.commits[commit], self.heads[repository, branch] = files, commit
        return commit

    def close_for(self, seconds: float) -> None:
        """Answer 429 to every request until then."""
        self.closed_until = time.monotonic() + seconds

    def counted(self, part: str) -> int:
        return sum(f"/{part}/" in path for path in self.requests)

    def close(self) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(self, answer: Any) -> type[BaseHTTPRequestHandler]:
        hub = self

        class HubHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

            def do_GET(self) -> None:
                status, headers, body = answer(hub, self)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return HubHandler


Answer = tuple[int, dict[str, str], bytes]


def _answer(hub: HubServer, request: BaseHTTPRequestHandler) -> Answer:
    hub.requests.append(request.path)
    if time.monotonic() < hub.closed_until:
        return 429, {"Retry-After": "1"}, b""
    if hub.answers:
        status, headers = hub.answers.pop(0)
        return status, headers, b""
    if hub.token and request.headers.get("Authorization") != f"Bearer {hub.token}":
        return 401, {"X-Error-Code": "RepoNotFound"}, b""
    return _of_repository(hub, request.path)


def _of_repository(hub: HubServer, url: str) -> Answer:
    path = unquote(urlsplit(url).path)
    if found := re.fullmatch(r"/api/((?:datasets|models)/\w+/\w+)/revision/(.+)", path):
        commit = hub.heads.get((found[1], found[2]))
        return (200, {}, json.dumps({"sha": commit}).encode()) if commit else (404, {}, b"")
    if found := re.fullmatch(r"/api/(?:datasets|models)/\w+/\w+/tree/(\w+)(?:/(.*))?", path):
        return _tree(hub, url, hub.commits[found[1]], found[2] or "")
    if found := re.fullmatch(r"/(?:datasets/)?\w+/\w+/resolve/(\w+)/(.+)", path):
        return 302, {"Location": f"{hub.content_url}/{found[1]}/{found[2]}"}, b""
    return 404, {}, b""


def _tree(hub: HubServer, url: str, files: Files, folder: str) -> Answer:
    query = parse_qs(urlsplit(url).query)
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for name, content in files.items():
        if not name.startswith(prefix):
            continue
        inner = name[len(prefix) :].split("/")
        for depth in range(1, len(inner)):
            path = prefix + "/".join(inner[:depth])
            entries[path] = {"type": "directory", "path": path, "size": 0, "oid": "t"}
        oid = hashlib.sha256(content).hexdigest()
        entries[name] = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": "g",
            "lfs": {"oid": oid, "size": len(content)},
        }
    if query["recursive"] == ["false"]:
        entries = {path: entry for path, entry in entries.items() if "/" not in path[len(prefix) :]}
    if not entries:
        return 404, {"X-Error-Code": "EntryNotFound"}, b""
    start = int(query.get("cursor", ["0"])[0])
    page = list(entries.values())[start : start + hub.page]
    headers = {}
    if start + hub.page < len(entries):
        place = f"{hub.url}{urlsplit(url).path}?recursive={query['recursive'][0]}&cursor={start + hub.page}"
        headers["Link"] = f'<{place}>; rel="next"'
    return 200, headers, json.dumps(page).encode()


def _content(hub: HubServer, request: BaseHTTPRequestHandler) -> Answer:
    hub.content_tokens.append(request.headers.get("Authorization"))
    _, commit, name = unquote(request.path).split("/", 2)
    content = hub.commits[commit][name]
    start, stop = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
    return 206, {"Content-Range": f"bytes {start}-{stop}/{len(content)}"}, content[start : stop + 1]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The Hub of this process."""
    constants = pytest.importorskip("huggingface_hub.constants")
    from huggingface_hub import close_session

    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    yield server
    close_session()
    server.close()
