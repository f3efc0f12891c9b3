"""Threads begin by `begin` alone: within a limit, or with an error that says why not. What is kept has begun."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest

HOME = "runtime/foreign_code.py"
KINDS = frozenset({"Thread", "OutcomeThread", "Timer"})


def test_threads_begin_in_one_place(sources: Mapping[str, ast.Module]) -> None:
    kinds = KINDS | {each.name for tree in sources.values() for each in ast.walk(tree) if _is_kind_of_thread(each)}
    assert kinds > KINDS, "a class of ours that is a thread was expected"
    found = {f"{file}:{line}" for file, tree in sources.items() if file != HOME for line in _wrong(tree, kinds)}
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "threading.Thread(target=run).start()",
        "thread = OutcomeThread(run, 'name')\nthread.start()",
        "self._timer = threading.Timer(1.0, run)\nself._timer.start()",
        "self._thread = threading.Thread(target=run)\nbegin(self._thread)",
        "found: Thread = Thread(target=run)\nfound.start()",
        "for each in [Thread(target=run) for _ in range(3)]:\n    each.start()",
    ],
)
def test_a_thread_is_noticed(text: str) -> None:
    assert list(_wrong(ast.parse(text), KINDS))


@pytest.mark.parametrize(
    "text",
    [
        "self._thread = begin(threading.Thread(target=run))",
        "thread = Thread(target=run)\nbegin(thread)",
        "server = Server()\nserver.start()",
    ],
)
def test_the_check_lets_pass(text: str) -> None:
    assert not list(_wrong(ast.parse(text), KINDS))


def _is_kind_of_thread(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(_last_name(base) in KINDS for base in node.bases)


def _wrong(tree: ast.Module, kinds: frozenset[str]) -> Iterator[int]:
    """Lines that start a thread without `begin`, and those that keep one before it has begun."""
    made = {name for node in ast.walk(tree) for name in _names_of_threads(node, kinds)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="start", value=thread)):
                if _makes(thread, kinds) or ast.unparse(thread) in made:
                    yield node.lineno
            case ast.Expr(value=ast.Call(func=ast.Name(id="begin"), args=[ast.Attribute() as kept])):
                # A method that joins it would raise, if it could not begin.
                if ast.unparse(kept) in made and not _is_made_once(tree, kept):
                    yield node.lineno


def _names_of_threads(node: ast.AST, kinds: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Assign(targets=targets, value=value) if _makes(value, kinds):
            yield from map(ast.unparse, targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value) if _makes(value, kinds):
            yield ast.unparse(target)
        case ast.For(target=target, iter=several) if _makes(several, kinds):
            yield ast.unparse(target)


def _makes(value: ast.expr, kinds: frozenset[str]) -> bool:
    """Whether a thread that has not begun is the value, or one of several."""
    match value:
        case ast.Call(func=function):
            return _last_name(function) in kinds
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
            return _makes(element, kinds)
        case _:
            return False


def _is_made_once(tree: ast.Module, kept: ast.expr) -> bool:
    """Whether a constructor makes the thread and another method begins it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    making = [
        each.name
        for each in functions
        if any(ast.unparse(kept) in _names_of_threads(node, KINDS) for node in ast.walk(each))
    ]
    beginning = [each.name for each in functions if f"begin({ast.unparse(kept)})" in ast.unparse(each)]
    return bool(functions) and making == ["__init__"] and "__init__" not in beginning


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]
