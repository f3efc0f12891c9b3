"""Models by their names on the Hub: what is downloaded, and what is refused. A server here speaks its protocol."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forebay import llm
from forebay.errors import InvalidOption
from forebay.llm.models import read_config
from forebay.llm.source.folders import local_copy
from forebay.llm.source.hub_model import HubModel, hub_access, hub_model, pinned_model

COMMIT = "c" * 40
NAME = "someone/small"


class Hub(BaseHTTPRequestHandler):
    """The Hub's protocol for the files of one model, as huggingface_hub speaks it."""

    commit: str
    files: dict[str, bytes]
    read: list[str]

    def do_GET(self) -> None:
        _, _, path = self.path.partition(f"/{NAME}/")
        path = path.split("?")[0]
        if path.startswith("tree/"):
            listing = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in self.files.items()
            ]
            self._answer(json.dumps(listing).encode())
        elif path.startswith("revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            self._answer(json.dumps({"id": NAME, "sha": self.commit, "siblings": siblings}).encode())
        elif (data := self.files.get(path.removeprefix(f"resolve/{self.commit}/"))) is not None:
            if self.command == "GET":
                self.read.append(path.rpartition("/")[2])
            self._answer(data)
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - named after the request

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": len(data),
            "ETag": f'"{_etag(data)}"',
            "X-Repo-Commit": self.commit,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """Server with no files yet, and an empty cache."""
    from huggingface_hub import constants

    handler = type("OneHub", (Hub,), {"commit": COMMIT, "files": {}, "read": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    # The library reads HF_ENDPOINT and HF_HOME when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_names_of_the_hub_and_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_model("org/name") == HubModel("org/name", "main")
    assert hub_model("org/some.name-1@v2.0") == HubModel("org/some.name-1", "v2.0")
    for other in ("tiny", "/org/name", "./org/name", "../name", "s3://org/name", "a/b/c", "~/name", "org/"):
        assert hub_model(other) is None
        assert pinned_model(other) == other
    assert pinned_model(f"org/name@{COMMIT}") == f"org/name@{COMMIT}"
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_model("org/name") is None


def test_only_models_of_the_hub_reach_it(hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    library = HfApi()
    for local in ("tiny", str(tmp_path), "s3://models/mine"):
        with hub_access(local), pytest.raises(OfflineModeIsEnabled):
            library.model_info(NAME, revision=COMMIT)
        assert "HF_HUB_OFFLINE" not in os.environ
    with hub_access("tiny"):
        assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
    with hub_access(NAME):
        assert library.model_info(NAME, revision=COMMIT).sha == COMMIT
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with hub_access("tiny"):
        assert library.model_info(NAME, revision=COMMIT).sha == COMMIT, "the user's variable stands"


@pytest.mark.variation("downloads by another library, whose import takes seconds")
def test_only_what_is_needed_is_downloaded_once(hub: type[Hub], tmp_path: Path) -> None:
    model = llm.ModelSpec(name="tiny", vocab_size=300).build()
    model.save_pretrained(tmp_path / "made")
    hub.files |= {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    hub.files |= {"pytorch_model.bin": b"pickle", "onnx/config.json": b"{}", "consolidated.safetensors": b"again"}
    name = pinned_model(NAME)
    assert name == f"{NAME}@{COMMIT}"
    assert read_config(name)["hidden_size"] == 64
    assert set(hub.read) == {"config.json", "generation_config.json"}
    built = llm.ModelSpec(name=name, vocab_size=300).build()
    for (key, value), (other, loaded) in zip(model.state_dict().items(), built.state_dict().items(), strict=True):
        assert key == other and value.equal(loaded)
    assert sorted(hub.read) == ["config.json", "generation_config.json", "model.safetensors"]
    local_copy(name)
    assert len(hub.read) == 3


@pytest.mark.variation("downloads by another library, whose import takes seconds")
def test_models_that_are_refused(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {"config.json": b'{"vocab_size": 300}', "pytorch_model.bin": b"pickle"}
    with pytest.raises(InvalidOption, match=r"pytorch_model.bin is a pickle, which may run any code"):
        read_config(NAME)
    with pytest.raises(InvalidOption, match="no tokenizer"):
        llm.tokenizer(NAME)
    with pytest.raises(
        InvalidOption, match=r"model='someone/other' is not a folder here, and the .* Hub does not give"
    ):
        read_config("someone/other")
    hub.commit = "d" * 40
    hub.files |= {"config.json": b'{"auto_map": {}}'}
    with pytest.raises(InvalidOption, match=rf"{NAME}@main brings code of its own \(auto_map"):
        read_config(NAME)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InvalidOption, match=r"this machine needs a network then, or the model in its cache"):
        pinned_model("someone/elsewhere")
    assert hub.read and "pytorch_model.bin" not in hub.read
