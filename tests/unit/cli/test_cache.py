"""`forebay cache ls` shows each dataset of a directory.

Bytes, blocks, hits, age and users, whatever lies in the directory.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.data.cache.disk.lease import named_user
from forebay.storage.file_lock import try_lock

Call = Callable[..., Any]


@pytest.fixture
def warm(forebay: Call, job_words: Call, tmp_path: Path) -> Path:
    """A cache of three blocks, stored and hit once."""
    for _ in range(2):
        assert forebay("warm", *job_words(), "--json").code == 0
    return tmp_path / "cache"


def test_every_field_is_there(forebay: Call, warm: Path) -> None:
    said = json.loads(forebay("cache", "ls", "--path", warm, "--json").out)
    (dataset,) = said["datasets"]
    assert (dataset["blocks"], dataset["hits"], dataset["users"]) == (3, 3, [])
    assert 0 < dataset["bytes"] < said["used_bytes"]
    assert 0 <= dataset["age_s"] < 600 and abs(time.time() - dataset["created_at"]) < 600
    assert dataset["dataset"].startswith("data-")


def test_a_run_is_listed_while_it_trains(forebay: Call, job_words: Call, warm: Path) -> None:
    look = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-m', 'forebay', 'cache', 'ls', "
    look += f"'--path', {str(warm)!r}]).decode())"
    drawing = f"    drawn = worker.loader()\n    next(drawn)\n    {look}\n    drawn.close()\n"
    job = Path(job_words()[0])
    job.write_text(job.read_text().replace("evaluate=None):\n", f"evaluate=None):\n{drawing}"))
    said = forebay("run", "--driver", "local", *job_words(name="ctr-7", epochs=1))
    (seen,) = (line for line in said.out.splitlines() if "data-" in line)
    assert f"ctr-7 (pid {os.getpid()} on {os.uname().nodename})" in seen


def cells_of(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_people_see_the_same(forebay: Call, warm: Path) -> None:
    cache = fb.DiskCache(warm, quota_bytes=1 << 26, min_free_bytes=0)
    (use,) = cache.datasets()
    with named_user("mine [/b]"):
        leases = [cache.lease(use.dataset), cache.lease(use.dataset), cache.lease("yet-to-come")]
    said = forebay("cache", "ls", "--path", warm).out
    for lease in leases:
        assert lease
        lease.release()
    head, _, first, second = said.splitlines()[-5:-1]
    assert cells_of(head) == ["dataset", "bytes", "blocks", "hits", "age", "used by"]
    cells = cells_of(first)
    mine = f"mine [/b] (pid {os.getpid()} on {os.uname().nodename})"
    assert cells[0] == use.dataset and cells[2:4] == ["3", "3"] and cells[5] == mine, "once, though held twice"
    assert cells_of(second)[:4] == ["yet-to-come", "0 B", "0", "0"]
    assert mine not in forebay("cache", "ls", "--path", warm).out


def test_a_malicious_entry_does_not_break_it(forebay: Call, warm: Path) -> None:
    facts = {"dataset": "\x1b[2Jboo", "name": "[red]\x07", "pid": 1, "host": "h", "since": 1e15, "hits": 1}
    contents = [b"\xff", b"{}", b"[" * 3000, json.dumps(facts).encode()]
    locks = []
    for number, content in enumerate(contents):
        path = warm / "users" / f"{number:016x}.json"
        path.write_bytes(content)
        locks.append(try_lock(path))
    said = forebay("cache", "ls", "--path", warm)
    listed = json.loads(forebay("cache", "ls", "--path", warm, "--json").out)
    for lock in locks:
        assert lock
        lock.release()
    assert said.code == 0 and "\x1b" not in said.out and "\x07" not in said.out
    assert [dataset["blocks"] for dataset in listed["datasets"]] == [3, 0]
    assert listed["datasets"][1]["users"][0]["name"] == "[red]?"
