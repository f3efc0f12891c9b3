"""`forebay warm` shows amount, total, speed and time left, for one node and for several."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.cache.disk.disk_cache import DiskCache
from forebay.cli.job_file import job_of
from forebay.cli.warm_cache import _warm_nodes

Call = Callable[..., Any]
LINE = r"{node} +━+ +[\d.]+/[\d.]+ [KM]?i?(B|bytes) +[\d.]+ [KM]?i?B/s +\d:\d\d:\d\d"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error as if it were a terminal of 80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_progress_has_rate_and_time(forebay: Call, job_words: Call, terminal: None) -> None:
    said = forebay("warm", *job_words())
    assert said.code == 0
    last = [line for line in plain(said.err).splitlines() if "this node" in line][-1]
    assert re.search(LINE.format(node="this node"), last), last
    assert "100" in last or re.search(r"([\d.]+)/\1 ", last), "everything is done"
    assert "stored_bytes" in plain(said.out)


def test_every_node_has_a_line_and_so_have_all(
    job_words: Call, tmp_path: Path, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *words = job_words()
    caches = {name: DiskCache(tmp_path / name, quota_bytes=1 << 24, min_free_bytes=0) for name in ("n1", "n2")}
    tallies = _warm_nodes(job_of(path, words), dict(caches))
    assert {name: tally["stores"] for name, tally in tallies.items()} == {"n1": 3, "n2": 3}
    shown = plain(capsys.readouterr().err)
    for node in ("n1", "n2", "2 nodes"):
        assert re.search(LINE.format(node=node), shown.splitlines()[-1] if node == "2 nodes" else shown), shown
    own, both = (re.findall(rf"{node} .* ([\d.]+)/\1 ", shown)[-1] for node in ("n1", "2 nodes"))
    assert float(both) == pytest.approx(2 * float(own), rel=0.1)
