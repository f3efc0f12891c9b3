"""WebHDFS over a local folder.

Name node and data node in one, as https://hadoop.apache.org describes the REST API.

Run as `python webhdfs.py PORT FOLDER [DELEGATION_TOKEN]`. With a token, every call to the name node must carry it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

PREFIX = "/webhdfs/v1"


class WebHdfsNode(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers
    folder: Path
    token: str | None

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names of http.server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name = unquote(parts.path.removeprefix(PREFIX))
        path = self.folder / name.strip("/")
        if self.token and "datanode" not in query and query.get("delegation") != self.token:
            self._refuse(403, "SecurityException", "Failed to obtain user group information: no valid token")
            return
        answer = getattr(self, f"_{query['op'].lower()}")
        try:
            answer(path, name, query, body)
        except FileNotFoundError:
            self._refuse(404, "FileNotFoundException", f"File does not exist: {name}")

    def _getfilestatus(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        self._say({"FileStatus": _status(path, "")})

    def _liststatus(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        entries = [_status(path, "")] if path.is_file() else [_status(one, one.name) for one in sorted(path.iterdir())]
        self._say({"FileStatuses": {"FileStatus": entries}})

    def _open(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        path.stat()
        if self._redirected(name, query):
            return
        offset = int(query.get("offset", 0))
        content = path.read_bytes()[offset:]
        self._send(200, content[: int(query["length"])] if "length" in query else content)

    def _create(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if not self._redirected(name, query):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            self._send(201)

    def _append(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if not self._redirected(name, query):
            with path.open("ab") as file:
                file.write(body)
            self._send(200)

    def _mkdirs(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._say({"boolean": True})

    def _rename(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        target = self.folder / query["destination"].strip("/")
        try:
            os.link(path, target)  # as the name node: without overwrite, and atomically
        except FileExistsError:
            self._say({"boolean": False})
            return
        path.unlink()
        self._say({"boolean": True})

    def _delete(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._say({"boolean": True})

    def _redirected(self, name: str, query: dict[str, str]) -> bool:
        """Redirect to a data node, as the name node does.

        Here the query marks the same server as a data node.
        """
        if "datanode" in query:
            return False
        options = "&".join(f"{key}={quote(value)}" for key, value in query.items() if key != "delegation")
        host = "{}:{}".format(*self.server.server_address[:2])
        self._send(307, headers={"Location": f"http://{host}{PREFIX}{quote(name)}?{options}&datanode=1"})
        return True

    def _say(self, facts: object) -> None:
        self._send(200, json.dumps(facts).encode())

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._send(status, json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode())

    def _send(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _status(path: Path, suffix: str) -> dict[str, object]:
    found = path.stat()
    return {
        "pathSuffix": suffix,
        "type": "DIRECTORY" if path.is_dir() else "FILE",
        "length": 0 if path.is_dir() else found.st_size,
        "modificationTime": found.st_mtime_ns // 1_000_000,
    }


if __name__ == "__main__":
    WebHdfsNode.folder, WebHdfsNode.token = Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), WebHdfsNode).serve_forever()
