"""Credentials open the store and are never shown."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import forebay as fb
from forebay.cli.app import main
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ForebayError
from forebay.storage.filesystem import resolve
from forebay.storage.retry import ReadPolicy
from forebay.training.checkpoint.checkpoint import DirectoryStore

Folder = Callable[..., Path]


@pytest.fixture
def printed(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """All output that was logged or printed so far."""
    caplog.set_level(logging.DEBUG, logger="forebay")
    return lambda: "".join(capfd.readouterr()) + caplog.text


def told_by(error: BaseException) -> str:
    facts = repr(error.facts) if isinstance(error, ForebayError) else ""
    return "".join(traceback.format_exception(error)) + repr(error) + facts


def files_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() + str(path).encode() for path in folder.rglob("*") if path.is_file())


def test_nothing_shown_or_stored_holds_them(
    store: Any, local_files: Path, cache: fb.DiskCache, tmp_path: Path, epochs_of: Any, printed: Callable[[], str]
) -> None:
    manifest = fb.scan(store.upload(local_files, "secret"))
    epochs_of(manifest, cache)
    manifest.save(tmp_path / "kept/m.json")
    manifest.save(tmp_path / "kept/m.parquet")
    place = resolve(store.uri("secret"))
    shown = [repr(manifest), str(manifest[0]), repr(place), place.uri, manifest.root, repr(fb.build_plan(manifest))]
    shown += [repr(vars(manifest)), repr(RowGroupReader(manifest)), repr(DirectoryStore(store.uri("c"))), printed()]
    stored = files_below(tmp_path / "kept") + files_below(tmp_path / "cache")
    for secret in store.secrets:
        assert secret not in "".join(shown)
        assert secret.encode() not in stored


def test_no_command_prints_them(
    store: Any, local_files: Path, tmp_path: Path, printed: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = store.upload(local_files, "commands")
    monkeypatch.chdir(tmp_path)
    for arguments in (["scan", uri], ["scan", uri, "--json"], ["scan", store.uri("commands/none"), "--json"]):
        with suppress(SystemExit):
            main(arguments)
    text = printed()
    assert "165" in text
    assert "does not exist" in text
    for secret in store.secrets:
        assert secret not in text
        assert secret.encode() not in files_below(tmp_path)


def test_cache_keys_do_not_depend_on_them(s3: Any, local_files: Path, cache: fb.DiskCache, epochs_of: Any) -> None:
    s3.upload(local_files, "keys")
    bucket = s3.options
    epochs_of(fb.scan(f"s3://bucket/keys?access_key=AKIANUMBERONE&secret_key=first-secret&{bucket}"), cache, 1)
    _, sums = epochs_of(fb.scan(f"s3://AKIANUMBERTWO:second-secret@bucket/keys?{bucket}"), cache, 1)
    assert sums[0].get("parquet_opens", 0) == 0


def test_a_refusal_does_not_tell_them(s3: Any, faulty: Any, local_files: Path, faults: Any, quick: ReadPolicy) -> None:
    s3.upload(local_files, "refused")
    faults.set({"kind": "status", "status": 403, "code": "InvalidAccessKeyId"})
    with pytest.raises(ForebayError) as caught:
        fb.scan(faulty.uri("refused"), policy=quick)
    assert not [secret for secret in faulty.secrets if secret in told_by(caught.value)]
    assert pickle.dumps(caught.value).find(faulty.secrets[1].encode()) < 0


WRONG = "wrong-sentinel-9f8e7d"
BAD_URIS = [
    "s3://KEY:{0}@bucket/x?no_such_option=1",
    "s3://bucket/x?region=us-east-1&secret_kye={0}",
    "s3://KEY:{0}/with/slash@bucket/x",
    "s3://KEY:{0}@bu cket/x y%zz",
    "gs://bucket/x?access_token={0}",
    "gs://user:{0}@bucket/x",
    "abfs://account:{0}@127.0.0.1:1/c/x?nonsense={0}",
    "abfs://c@account.dfs.core.windows.net/x?client_secret={0}",
    "hdfs://user:{0}@name:8020/x",
    "hdfs://name:8020/x?delegation={0}",
    "webhdfs://user:{0}@127.0.0.1:1/x",
    "webhdfs://127.0.0.1:1/x?token={0}",
    "nosuch://user:{0}@host/x?token={0}",
    "https://127.0.0.1:1/x.parquet?X-Amz-Signature={0}&X-Amz-Date=1",
    "file://user:{0}@host/x",
]


@pytest.mark.parametrize("uri", BAD_URIS)
def test_a_uri_that_does_not_work_is_not_repeated_with_them(uri: str, printed: Callable[[], str]) -> None:
    policy = ReadPolicy(attempts=1, deadline_s=5.0, first_wait_s=0, max_wait_s=0)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any: what counts is what it tells
        fb.scan(uri.format(WRONG), policy=policy)
    assert isinstance(caught.value, ForebayError)
    assert WRONG not in told_by(caught.value) + printed()


def test_a_token_in_the_errors_of_a_library_is_blotted_out(webhdfs: Any, local_files: Path, quick: ReadPolicy) -> None:
    webhdfs.upload(local_files, "token")
    with pytest.raises(ForebayError, match="may not be listed") as caught:
        fb.scan(f"{webhdfs.base}/token?token={WRONG}", policy=quick)
    assert WRONG not in told_by(caught.value)


def test_a_shared_access_signature_opens_azure_and_stays_hidden(
    azure: Any, local_files: Path, epochs_of: Any, quick: ReadPolicy
) -> None:
    azure.upload(local_files, "signed")
    signed = azure.base + f"/signed?enable_tls=false&{signature(permissions='rl')}"
    expected, _ = epochs_of(fb.scan(local_files), None, 1)
    manifest = fb.scan(signed)
    assert epochs_of(manifest, None, 1)[0] == expected
    assert manifest.root == f"{azure.base}/signed?enable_tls=false"
    expired = azure.base + f"/signed?enable_tls=false&{signature(permissions='rl', end='2020-01-01')}"
    with pytest.raises(ForebayError, match="check the credentials") as caught:
        fb.scan(expired, policy=quick)
    assert expired.partition("sig=")[2] not in told_by(caught.value)


def signature(permissions: str, end: str = "2099-01-01") -> str:
    """An account SAS as Azure's documentation makes it (version 2018-11-09)."""
    key = base64.b64decode("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
    text = f"devstoreaccount1\n{permissions}\nb\nsco\n\n{end}\n\n\n2018-11-09\n"
    made = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    return f"sv=2018-11-09&ss=b&srt=sco&sp={permissions}&se={end}&sig={quote(made, safe='')}"


def test_credentials_of_the_environment(s3: Any, local_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.upload(local_files, "environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://" + s3.options.partition("override=")[2].partition("&")[0])
    manifest = fb.scan("s3://bucket/environment?region=eu-west-1")
    assert (manifest.num_rows, manifest.root) == (165, "s3://bucket/environment?region=eu-west-1")


def test_a_saved_manifest_is_opened_with_whatever_this_process_was_given(
    s3: Any, local_files: Path, tmp_path: Path
) -> None:
    fb.scan(s3.upload(local_files, "loaded")).save(tmp_path / "m.json")
    code = (
        "import forebay as fb, sys; from forebay.data.parquet.reading import RowGroupReader as R\n"
        "from forebay.storage.filesystem import resolve\n"
        "resolve(sys.argv[2]); print(R(fb.Manifest.load(sys.argv[1])).read(0).num_rows)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m.json"), s3.uri("")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "40"
    assert json.loads((tmp_path / "m.json").read_text())["root"].startswith("s3://bucket/loaded?endpoint")
