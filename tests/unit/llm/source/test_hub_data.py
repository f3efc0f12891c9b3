"""Datasets by the library `datasets`, from a local folder and its cache. No network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidOption
from forebay.llm.source.hub_data import hub_files
from forebay.llm.source.token_source import TokenSource
from forebay.llm.source.tokenizers import tokenizer
from forebay.testing.data.chats import unique_chats


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidOption, match=r"data='hf:someone/chats' needs .*pip install 'forebay\[hf-data\]'"):
        hub_files("hf:someone/chats")


@pytest.mark.variation("reads through another library, which takes seconds to import")
def test_rows_are_those_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    (tmp_path / "chats").mkdir()
    lines = "".join(json.dumps({"messages": each}) + "\n" for each in unique_chats(20, 0))
    for split in ("train", "test"):
        (tmp_path / "chats" / f"{split}.jsonl").write_text(lines)
    direct = fb.prepare(
        TokenSource(str(tmp_path / "chats" / "train.jsonl"), tokenizer("tiny"), seq_len=128), into=str(tmp_path / "a")
    )
    for name in (f"hf:{tmp_path}/chats", f"hf:{tmp_path}/chats:test"):
        made = fb.prepare(TokenSource(name, tokenizer("tiny"), seq_len=128), into=str(tmp_path / "b"))
        assert made.facts["counts"] == direct.facts["counts"]
        assert [file.rows for file in made.files] == [file.rows for file in direct.files]
    with pytest.raises(InvalidOption, match="data='hf:nobody/nothing' cannot be loaded .*HF_HOME"):
        hub_files("hf:nobody/nothing")
