"""The table of features: each tick of ours links to a test or a bench that exists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[4] / "docs" / "comparison.md"
LINK = re.compile(r'\[✓\]\((?P<path>[^ )]+)(?: "(?P<name>\w+)")?\)')
ABSENT = "\N{EN DASH}"


def table() -> list[list[str]]:
    """Rows of the table without its rule, head first. A row is a list of cells."""
    section = PAGE.read_text().split("\n## Loaders, feature by feature\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


def test_every_tick_of_ours_links_to_a_test_or_a_bench_that_exists() -> None:
    _, *rows = table()
    assert len(rows) >= 10
    for feature, ours, *_ in rows:
        if ours == ABSENT:
            continue
        link = LINK.fullmatch(ours)
        assert link is not None, f"{feature}: {ours}"
        path = (PAGE.parent / link["path"]).resolve().relative_to(PAGE.parents[1])
        assert path.parts[0] in ("tests", "bench") or path.parts[:2] == ("docs", "benchmarks"), feature
        text = (PAGE.parents[1] / path).read_text()
        assert path.suffix != ".py" or f"\ndef {link['name']}(" in text, f"{feature}: {ours}"


def test_others_have_ticks_that_we_lack() -> None:
    _, *rows = table()
    assert sum(ours == ABSENT and "✓" in others for _, ours, *others in rows) >= 2


def test_every_feature_has_an_answer_for_every_loader_and_each_names_its_documentation() -> None:
    head, *rows = table()
    assert head[1] == "Forebay"
    assert all("](https://" in cell for cell in head[2:])
    assert {len(row) for row in rows} == {len(head)}
    assert all(cell for row in rows for cell in row)
