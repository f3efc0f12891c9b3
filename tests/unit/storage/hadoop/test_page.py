"""The page on HDFS names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_test_that_it_names_exists() -> None:
    repository = Path(__file__).parents[4]
    page = (repository / "docs/hdfs.md").read_text()
    named = set(re.findall(r"`((?:test_|Test)\w+)`", page))
    assert len(named) > 10
    sources = "".join(path.read_text() for path in (repository / "tests/storage").rglob("*.py"))
    assert {name for name in named if not re.search(rf"(def|class) {name}\b", sources)} == set()
