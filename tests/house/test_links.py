"""Links of pages lead to a file that exists, and to a heading of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
IGNORED = {".venv", "build", "node_modules"}


def broken_links(page: Path) -> Iterator[str]:
    """Links of `page` to files or headings that do not exist."""
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and target.suffix == ".md" and heading not in headings(target)):
            yield f"{page}: {link}"


def headings(page: Path) -> set[str]:
    """Headings as a link names them."""
    titles = HEADING.findall(CODE.sub("", page.read_text()))
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in shown}


def test_links_lead_somewhere(repository: Path) -> None:
    pages = [page for page in repository.rglob("*.md") if not IGNORED & set(page.relative_to(repository).parts)]
    assert len(pages) > 100
    assert [link for page in pages for link in broken_links(page)] == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# Rows, `in` [order](b)\n[a](#rows-in-order) [b](a.md#rows) [c](c.md) [d](s3://a) [e](a.md)\n")
    assert [each.partition(": ")[2] for each in broken_links(page)] == ["b", "a.md#rows", "c.md"]
