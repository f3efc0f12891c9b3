"""Prose of a checkout - docstrings, comments and Markdown - and the expressions that do not belong in it."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BANNED = re.compile(r"\b(whoever|nobody|shall|anew|for ever|told|word|gone)\b", re.IGNORECASE)
PRONOUN = re.compile(r"\b(that|those) of\b", re.IGNORECASE)
NEGATION = re.compile(
    r"\b(?<!there )(is|are|was|were) no (?!longer|more|later|earlier|larger|smaller|faster|slower|better|worse)",
    re.IGNORECASE,
)
OPENER = re.compile(r"(who|what|where)\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z']*")
DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|!)")
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
CODE_ROOTS = ("platform/forebay", "bench", "studies", "jobs", "scripts")
TEST_ROOTS = ("tests",)
PAGES = ("README.md", "tests/README.md", "docs", "notebooks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One docstring, comment or page, without its code."""

    file: str
    line: int
    text: str
    is_docstring: bool = False

    @property
    def num_words(self) -> int:
        return len(WORD.findall(self.text))

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0]

    @property
    def pronouns(self) -> list[str]:
        """`that of` and `those of`, and negated nouns such as `is no list`, each as often as it occurs."""
        return [match.group() for pattern in (PRONOUN, NEGATION) for match in pattern.finditer(self.text)]

    @property
    def faults(self) -> list[str]:
        """Unwanted expressions, each as often as it occurs."""
        found = [match.group().lower() for match in BANNED.finditer(self.text)]
        if self.is_docstring:
            first = self.first_line
            found += [f"opens with {match.group()!r}"] if (match := OPENER.match(first)) else []
            found += ["semicolon in the first line"] if ";" in first else []
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """All passages of some folders."""

    passages: tuple[Passage, ...]

    @property
    def num_words(self) -> int:
        return sum(passage.num_words for passage in self.passages)

    @property
    def faults(self) -> list[str]:
        """`file:line fault`, in order."""
        return [f"{each.file}:{each.line} {fault}" for each in self.passages for fault in each.faults]

    @property
    def faults_per_1000(self) -> float:
        return 1000 * len(self.faults) / max(self.num_words, 1)


@cache
def prose_of(repository: Path, roots: tuple[str, ...]) -> Prose:
    """Prose below `roots`: of Python files, Markdown pages and notebooks."""
    passages: list[Passage] = []
    for path in files_below(repository, roots, (".py", ".md", ".ipynb")):
        file = str(path.relative_to(repository))
        match path.suffix:
            case ".py":
                passages += [*docstrings(file, path.read_text()), *comments(file, path.read_text())]
            case ".md":
                passages += lines_of_page(file, path.read_text())
            case ".ipynb":
                cells = json.loads(path.read_text())["cells"]
                pages = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
                passages += [passage for page in pages for passage in lines_of_page(file, page)]
    return Prose(passages=tuple(passages))


def files_below(repository: Path, roots: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files with these suffixes, in order. A root may be a file, and may be missing."""
    for root in roots:
        place = repository / root
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.suffix in suffixes and "__pycache__" not in path.parts)


def docstrings(file: str, source: str) -> Iterator[Passage]:
    """Docstrings of the module, its classes, functions and documented attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Passage(file=file, line=node.lineno, text=_without_code(text), is_docstring=True)


def comments(file: str, source: str) -> Iterator[Passage]:
    """Comments, except directives to tools."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            yield Passage(file=file, line=token.start[0], text=_without_code(token.string.partition("# noqa")[0]))


def lines_of_page(file: str, text: str) -> Iterator[Passage]:
    """Lines of a Markdown page outside code."""
    blanked = FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)
    for number, line in enumerate(blanked.splitlines(), start=1):
        yield Passage(file=file, line=number, text=_without_code(line))


def _without_code(text: str) -> str:
    return CODE.sub("", FENCE.sub("", text))
