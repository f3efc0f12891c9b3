"""Files of an HTTP server: what it answers is the cause in the error, and tokens are in its requests alone."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ForebayError, InvalidOption, NoFiles, ReadFailed, SourceChanged
from forebay.storage import credentials
from forebay.storage.retry import ReadPolicy

pytest.importorskip("aiohttp")
QUICK = ReadPolicy(attempts=2, deadline_s=20, first_wait_s=0.001, max_wait_s=0.002)
TOKEN = "token-of-mine-77"


class AnsweringServer:
    """Serves one Parquet file under every name, or answers with the status in the name, or in `status`."""

    def __init__(self) -> None:
        stream = io.BytesIO()
        pq.write_table(pa.table({"id": [1, 2]}), stream)
        self.status, self.asked, content, server = 0, set[tuple[str, str]](), stream.getvalue(), self

        class AnsweredRequest(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer()

            def do_GET(self) -> None:
                self.wfile.write(self.answer())

            def answer(self) -> bytes:
                login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
                server.asked.add((login, self.path))
                name = self.path.strip("/").partition(".")[0]
                status = server.status or (int(name) if name.isdecimal() else 200)
                part = content if status == 200 else b""
                first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
                if first and part:
                    status, part = 206, content[int(first) : int(last) + 1]
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                return part

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), AnsweredRequest)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    found = AnsweringServer()
    yield found
    found.close()
    credentials._granted.clear()
    credentials._secrets.clear()


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (404, NoFiles, "does not exist"),
        (401, ReadFailed, "401"),
        (403, ReadFailed, "may not be listed"),
        (429, ReadFailed, "429"),
        (500, ReadFailed, "500"),
        (503, ReadFailed, "503"),
    ],
)
def test_an_answer_of_the_server_is_the_cause(
    server: AnsweringServer, status: int, error: type[ForebayError], told: str
) -> None:
    with pytest.raises(error, match=told):
        fb.scan(f"http://{server.host}/{status}.parquet", footers=False, policy=QUICK)


def test_an_outage_is_no_deletion(server: AnsweringServer) -> None:
    manifest = fb.scan(f"http://{server.host}/a.parquet", footers=False, policy=QUICK)
    server.status = 503
    with pytest.raises(ReadFailed, match="503"):
        RowGroupReader(manifest, QUICK).read(0)
    server.status = 404
    with pytest.raises(SourceChanged, match="no longer exists"):
        RowGroupReader(manifest, QUICK).read(0)


def test_a_server_that_is_gone_is_no_missing_file(server: AnsweringServer) -> None:
    server.close()
    with pytest.raises(ReadFailed, match="connect"):
        fb.scan(f"http://{TOKEN}@{server.host}/a.parquet", footers=False, policy=QUICK)


@pytest.mark.parametrize(
    ("login", "options", "shown"),
    [(TOKEN, "", ""), (f"{TOKEN}:x-oauth-basic", "?part=1", "?part=1"), ("", f"?code={TOKEN}&part=1", "?part=1")],
)
def test_tokens_are_sent_and_never_shown(server: AnsweringServer, login: str, options: str, shown: str) -> None:
    at = "@" if login else ""
    manifest = fb.scan(f"http://{login}{at}{server.host}/a.parquet{options}", footers=False, policy=QUICK)
    assert RowGroupReader(manifest, QUICK).read(0).num_rows == 2
    assert manifest.uri_of(manifest.files[0]) == f"http://{server.host}/a.parquet{shown}"
    sent = {who or path for who, path in server.asked}
    assert all(TOKEN in each for each in sent)
    server.status = 500
    with pytest.raises(ReadFailed) as caught:
        RowGroupReader(manifest, QUICK).read(0)
    errors: list[Any] = [caught.value]
    while errors[-1] is not None:
        assert TOKEN not in str(errors[-1])
        errors.append(errors[-1].__cause__)


def test_a_listing_without_a_common_folder_logs_no_token(
    server: AnsweringServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    caplog.set_level("INFO")
    assert fb.scan([f"http://{TOKEN}@{server.host}/a.parquet", tmp_path], footers=False, policy=QUICK).num_rows == 4
    assert "all taken" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("other", ["?code=second-code", ""])
def test_uris_that_differ_in_credentials_alone_are_refused(server: AnsweringServer, other: str) -> None:
    uris = [f"http://{server.host}/a.parquet{option}" for option in ("?code=first-code", other)]
    with pytest.raises(InvalidOption, match="differ in their credentials alone") as caught:
        fb.scan(uris, footers=False, policy=QUICK)
    assert "-code" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.parquet", "500.metadata.json"])
@pytest.mark.parametrize(("login", "options"), [(f"{TOKEN}@", ""), ("", f"?code={TOKEN}")])
def test_errors_about_tables_show_no_token(server: AnsweringServer, login: str, options: str, name: str) -> None:
    with pytest.raises(ForebayError) as caught:
        fb.scan(f"http://{login}{server.host}/{name}{options}", version=3, footers=False, policy=QUICK)
    assert name in str(caught.value) and TOKEN not in str(caught.value)


def test_a_uri_that_a_library_does_not_take() -> None:
    with pytest.raises(InvalidOption, match="not a URI that fsspec accepts"):
        fb.scan(f"github://{TOKEN}@org/a.parquet", footers=False, policy=QUICK)
