"""Prose of the repository: few expressions that a non-native reader stumbles over."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.house.prose import CODE_ROOTS, PAGES, TEST_ROOTS, Passage, docstrings, files_below, lines_of_page, prose_of

BUDGET_PER_1000 = 0.2
"""Unwanted expressions per 1,000 words."""
PRONOUNS_PER_1000 = 0.3
FIRST_LINE_WORDS = 10
DOCS_WORDS = 60_000
"""Words of all pages below docs, without the bars of tables: a page that grows takes its words from another one."""
NOTES = ("docs/adr/", "docs/internals/")
"""Decisions and notes keep the words of their day."""
# Modules that jobs, docs and notebooks may import: user code depends on nothing else.
PUBLIC = re.compile(r"forebay(\.(events|errors|llm|testing)(\.\w+)*)?")
IMPORT = re.compile(r"^\s*(?:>>> )?(?:import|from)\s+(forebay[\w.]*)", re.MULTILINE)


@pytest.mark.parametrize("roots", [CODE_ROOTS, PAGES, TEST_ROOTS], ids=" ".join)
def test_prose_keeps_to_its_budget(repository: Path, roots: tuple[str, ...]) -> None:
    prose = prose_of(repository, roots)
    assert prose.num_words > 2_000
    assert prose.faults_per_1000 <= BUDGET_PER_1000, "\n".join(prose.faults)


@pytest.mark.parametrize("roots", [CODE_ROOTS, PAGES, TEST_ROOTS], ids=" ".join)
def test_a_noun_says_more_than_a_pronoun(repository: Path, roots: tuple[str, ...]) -> None:
    prose = prose_of(repository, roots)
    kept = [each for each in prose.passages if not each.file.startswith(NOTES)]
    found = [f"{each.file}:{each.line} {word}" for each in kept for word in each.pronouns]
    words = sum(each.num_words for each in kept)
    assert 1000 * len(found) / words <= PRONOUNS_PER_1000, "\n".join(found)


def test_docs_stay_short(repository: Path) -> None:
    words = [word for page in (repository / "docs").rglob("*.md") for word in page.read_text().split()]
    assert sum(any(map(str.isalnum, word)) for word in words) <= DOCS_WORDS


def test_first_lines_are_short(repository: Path) -> None:
    """A reader of a list of functions reads first lines only."""
    counts = [
        Passage(file=file, line=1, text=line).num_words
        for file in map(str, (repository / "platform/forebay").rglob("*.py"))
        for line in _first_lines(Path(file).read_text())
    ]
    assert len(counts) > 3_000
    assert statistics.median(counts) <= FIRST_LINE_WORDS


def _first_lines(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(None, [(ast.get_docstring(node) or "").partition("\n")[0]])


@pytest.mark.parametrize(
    ("text", "num_found"),
    [("the shape is that of all, those of others too", 2), ("it is no list; there is no list, and no more", 1)],
)
def test_the_check_of_pronouns_counts(text: str, num_found: int) -> None:
    assert len(Passage(file="a.py", line=1, text=text).pronouns) == num_found


@pytest.mark.parametrize(
    ("source", "num_faults"),
    [
        ('"""Returns the seed; nobody is told."""', 3),
        ('"""What a step costs."""', 1),
        ('class A:\n    size: int\n    """Where it is kept."""', 1),
        ('"""State of a run. A reader may ask what it costs; `shall` is code."""', 1),
        ('"""State of a run."""', 0),
    ],
)
def test_the_check_counts(source: str, num_faults: int) -> None:
    assert sum(len(passage.faults) for passage in docstrings("a.py", source)) == num_faults


def test_code_on_a_page_is_not_prose() -> None:
    page = "A run that is gone.\n```python\nword = told\n```\n"
    assert [(each.line, each.faults) for each in lines_of_page("a.md", page) if each.faults] == [(1, ["gone"])]
    assert Passage(file="a.py", line=1, text="# a password").faults == []


def test_users_import_nothing_from_the_rooms(repository: Path) -> None:
    found = list(_imports(repository))
    assert len(found) > 10
    assert [f"{place}: {module}" for place, module in found if not PUBLIC.fullmatch(module)] == []


def _imports(repository: Path) -> Iterator[tuple[str, str]]:
    """Our modules that docs, jobs and notebooks import, also in code inside their text."""
    for path in files_below(repository, ("README.md", "docs", "notebooks", "jobs"), (".py", ".md", ".ipynb")):
        text = path.read_text().replace('"from ', "\nfrom ").replace('"import ', "\nimport ")
        yield from ((str(path.relative_to(repository)), module) for module in IMPORT.findall(text))
