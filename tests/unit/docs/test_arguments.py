"""Pages name what `fb` has, with arguments that its functions take: also in snippets without a test."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import forebay as fb

ROOT = Path(__file__).parents[3]
CODE = re.compile(r"^```python[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\bfb(?:\.\w+)+")


def pages() -> list[Path]:
    """README and docs. Decisions keep the names of their day."""
    return [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr")]


def faults(code: str) -> Iterator[str]:
    """Names that do not exist, and arguments that their functions do not take."""
    for name in NAME.findall(code):
        try:
            found(name)
        except AttributeError as error:
            yield str(error)
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a part of a line, or with `...` for what a reader writes
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and NAME.fullmatch(name := ast.unparse(call.func)):
            taken = inspect.signature(found(name)).parameters
            if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                yield from (f"{name}({each.arg}=)" for each in call.keywords if each.arg and each.arg not in taken)


def found(name: str) -> Any:
    return reduce(getattr, name.split(".")[1:], fb)


def test_names_and_arguments_exist() -> None:
    assert [
        f"{page.relative_to(ROOT)}: {fault}"
        for page in pages()
        for block, span in CODE.findall(page.read_text())
        for fault in faults(block or span)
    ] == []


def test_faults_are_seen() -> None:
    assert list(faults("fb.llm.job(options, beta=1)")) == ["fb.llm.job(beta=)"]
    assert len(list(faults("fb.WarmStart(run=...)` and"))) == 1
    assert list(faults("fb.Transform(anything=fb.Dense(['x']))")) == []
