"""The site: links lead somewhere, every page is in the navigation, every public name and option is explained."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts import build_docs

REPOSITORY = Path(__file__).parents[3]


def test_links_navigation_names_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_docs, "PAGES", tmp_path)
    assert build_docs.write_pages() == []
    assert (tmp_path / "index.md").read_text().startswith("# Forebay")
    assert "## forebay llm score\n" in (tmp_path / "reference" / "commands.md").read_text()


def test_faults_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "repository" / "docs"
    docs.mkdir(parents=True)
    (docs / "here.md").write_text("[a](there.md) [b](here.md#title) `[c](code.md)`\n```\n[d](fence.md)\n```\n")
    (docs.parent / "README.md").write_text("[e](docs/here.md) [f](setup.py)")
    monkeypatch.setattr(build_docs, "REPOSITORY", docs.parent)
    monkeypatch.setattr(build_docs, "PAGES", tmp_path / "pages")
    assert list(build_docs.copy_pages()) == [
        "docs/here.md: there.md does not exist",
        "README.md: setup.py does not exist",
    ]
    assert (tmp_path / "pages" / "index.md").read_text().startswith("[e](here.md)")
    assert list(build_docs.outside_of_navigation()) == ["here.md is not in the navigation (zensical.toml)"]


def test_texts_of_errors_are_those_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    wanted = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(wanted) >= 12
    texts = [text for file in (REPOSITORY / "platform" / "forebay").rglob("*.py") for text in literals(file)]
    assert [each for each in wanted if not any(each in text for text in texts)] == []


def literals(file: Path) -> list[str]:
    """Strings of a module, with `{}` for what is put into them."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
            found.append("".join(map(str, parts)))
    return found
