"""`forebay warm` shows its progress on one or several nodes.

Amount, total, speed and time left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.job_file import job_of
from forebay.cli.warm_cache import _requested, _warm_nodes
from forebay.data.cache.builders.data_workers import DEFAULT_WORKERS
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block

Call = Callable[..., Any]
LINE = r"{node} +━+ +[\d.]+/[\d.]+ [KM]?i?(B|bytes) +[\d.]+ [KM]?i?B/s +\d:\d\d:\d\d"


class SlowSource:
    """Source whose blocks are there when they are waited for.

    `most_pending` were requested before that.
    """

    def __init__(self) -> None:
        self._num_pending = self.most_pending = 0

    def request(self, index: int) -> Future[Block]:
        self._num_pending += 1
        self.most_pending = max(self.most_pending, self._num_pending)
        return Awaited(self)

    def arrived(self) -> None:
        self._num_pending -= 1

    def close(self, timeout_s: float = 5.0) -> None:
        pass


class Awaited(Future[Block]):
    """Future that is done once a caller waits."""

    def __init__(self, source: SlowSource) -> None:
        super().__init__()
        self._source = source

    def result(self, timeout: float | None = None) -> Block:
        self._source.arrived()
        return Block(0, {})


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error as if it were a terminal of 80 columns."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
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


def test_the_number_of_reads_is_told(forebay: Call, job_words: Call) -> None:
    told = json.loads(forebay("warm", *job_words(), "--json").out)
    assert told["this node"]["num_reads"] == DEFAULT_WORKERS.for_local_files().read_bounds.start
    told = json.loads(forebay("warm", *job_words(), "--json").out)
    assert told["this node"]["num_reads"] == 0, "all blocks are there"


@pytest.mark.parametrize(("block_bytes", "most"), [(1, 160), (1 << 26, 8), (1 << 30, 8)])
def test_requests_are_bounded_in_number_and_bytes(block_bytes: int, most: int) -> None:
    source = SlowSource()
    assert list(_requested(source, [block_bytes] * 500)) == list(range(500))
    assert source.most_pending == most


def test_every_node_has_a_line_and_so_have_all(
    job_words: Call, tmp_path: Path, terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *words = job_words()
    caches = {name: DiskCache(tmp_path / name, quota_bytes=1 << 24, min_free_bytes=0) for name in ("n1", "n2")}
    counters = _warm_nodes(job_of(path, words), dict(caches))
    assert {name: each["stores"] for name, each in counters.items()} == {"n1": 3, "n2": 3}
    shown = plain(capsys.readouterr().err)
    for node in ("n1", "n2", "2 nodes"):
        assert re.search(LINE.format(node=node), shown.splitlines()[-1] if node == "2 nodes" else shown), shown
    own, both = (re.findall(rf"{node} .* ([\d.]+)/\1 ", shown)[-1] for node in ("n1", "2 nodes"))
    assert float(both) == pytest.approx(2 * float(own), rel=0.1)
