"""Decisions: each in the index once, in order, with a status."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_index_has_every_decision_once_in_order(repository: Path) -> None:
    folder = repository / "docs" / "adr"
    files = sorted(path.name for path in folder.glob("0*.md"))
    assert len(files) > 20
    index = (folder / "README.md").read_text()
    assert re.findall(r"\((0\d{3}-[a-z0-9-]+\.md)\)", index) == files
    assert len({name[:4] for name in files}) == len(files)


def test_every_decision_has_its_number_and_a_status(repository: Path) -> None:
    for path in sorted((repository / "docs" / "adr").glob("0*.md")):
        lines = path.read_text().splitlines()
        assert lines[0].startswith(f"# {path.name[:4]} "), path.name
        assert re.fullmatch(r"\*\*Status\.\*\* (Proposed|Accepted|Superseded by \d{4})\.", lines[2]), path.name
