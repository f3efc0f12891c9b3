"""Source of the sweep bench: a folder as a read-only S3 bucket that counts every byte it sends.

python -m bench.sweep.source FOLDER        # prints its port, then serves until its input ends

`GET /-/counts` returns the counts since the last `POST /-/counts`. Only listing and reading are answered;
signatures are ignored. https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from bench.processes import command, environment

BUCKET = "bucket"
_COUNTS = "/-/counts"
_WELL_KNOWN = ("Content-Type", "application/xml")


class Range(NamedTuple):
    """Bytes of a file that were sent at once, from `start` to `stop`."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class Counts:
    """Counts of the source: bytes of files (not of listings or headers), answers with such bytes, times per range."""

    sent_bytes: int
    reads: int
    ranges: dict[Range, int]


class Source:
    """Server in a process of its own, so that it shares no interpreter with the readers."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def endpoint(self) -> str:
        """URL for S3 clients."""
        return f"127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Reset the counts to zero."""
        self._ask("POST")

    def counts(self) -> Counts:
        """Counts since the last reset."""
        ranges = {Range(*place): times for *place, times in self._ask("GET")}
        sent = sum((place.stop - place.start) * times for place, times in ranges.items())
        return Counts(sent, sum(ranges.values()), ranges)

    def _ask(self, method: str) -> Any:
        request = urllib.request.Request(f"http://{self.endpoint}{_COUNTS}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - ourselves
            return json.load(answer)


@contextmanager
def serving(folder: Path) -> Iterator[Source]:
    """Serve `folder` until the context ends."""
    line = command("bench.sweep.source", folder)
    with subprocess.Popen(line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Source(int(process.stdout.readline()))
        finally:
            process.stdin.close()


class Bucket(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    folder: Path
    sent: Counter[Range]
    lock: threading.Lock

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        with self.lock:
            self.sent.clear()
        self._say(200, b"{}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == _COUNTS:
            with self.lock:
                content = json.dumps([[*place, times] for place, times in self.sent.items()]).encode()
            self._say(200, content)
            return
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if bucket != BUCKET:
            self._refuse("NoSuchBucket")
        elif not key and self.command == "GET":
            self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        elif key and not (self.folder / key).is_file():
            self._refuse("NoSuchKey")
        elif key:
            self._send_file(key)
        else:
            self._say(200, b"")

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        below = sorted({_up_to(key, delimiter, len(prefix)) for key in keys if delimiter in key[len(prefix) :]})
        here = [key for key in keys if delimiter not in key[len(prefix) :]]
        if not delimiter:
            here, below = keys, []
        contents = "".join(self._entry(key) for key in here)
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in below)
        self._say(
            200,
            f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(here) + len(below)}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{folders}</ListBucketResult>".encode(),
        )

    def _entry(self, key: str) -> str:
        facts = (self.folder / key).stat()
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{facts.st_mtime_ns:x}&quot;</ETag><Size>{facts.st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _send_file(self, key: str) -> None:
        path = self.folder / key
        facts = path.stat()
        start, stop = self._wanted(facts.st_size)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{facts.st_size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{facts.st_mtime_ns:x}"')
        self.send_header("Last-Modified", formatdate(facts.st_mtime, usegmt=True))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        if self.command == "HEAD":
            return
        # Count before the client has the bytes: its next request may be for the counts.
        whole, sent = Range(key, start, stop), 0
        with self.lock:
            self.sent[whole] += 1
        try:
            with path.open("rb") as file:
                sent = self.connection.sendfile(file, start, stop - start) if stop > start else 0
        finally:
            if sent < stop - start:
                self._correct(whole, whole._replace(stop=start + sent))

    def _correct(self, counted: Range, sent: Range) -> None:
        """Correct a count whose bytes were not sent, or not all of them."""
        with self.lock:
            if not self.sent[counted]:
                return  # Reset in the meantime.
            self.sent[counted] -= 1
            if sent.stop > sent.start:
                self.sent[sent] += 1

    def _wanted(self, size: int) -> tuple[int, int]:
        """Requested bytes: `bytes=a-b`, `bytes=a-` or `bytes=-n`."""
        first, _, last = self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")
        if not first:
            return max(size - int(last), 0), size
        return int(first), min(int(last) + 1, size) if last else size

    def _refuse(self, code: str) -> None:
        self._say(404, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _say(self, status: int, content: bytes) -> None:
        self.send_response_only(status)
        self.send_header(*_WELL_KNOWN)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _up_to(key: str, delimiter: str, start: int) -> str:
    return key[: key.index(delimiter, start) + len(delimiter)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    Bucket.folder, Bucket.sent, Bucket.lock = Path(sys.argv[1]).resolve(), Counter(), threading.Lock()
    server = _Server(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
