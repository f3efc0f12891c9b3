"""Output to a terminal passes the two places that escape foreign text."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.house.figures import nodes_of

HOMES = {"cli/output.py", "report/console.py"}
OWN_TEXT = {
    "data/kernels/loading.py": "counts of kernels, and a folder of this user",
    "cli/llm/score.py": "counts and rates of this process",
    "fleet/client/runner.py": "the output of a program as it is, into its own log",
}
"""Modules that write to a stream themselves, with the reason."""


def _writes(tree: ast.Module) -> list[int]:
    found = []
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "Console")) | ast.Call(func=ast.Attribute(attr="echo" | "secho")):
                found.append(node.lineno)
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"):
                found.append(node.lineno)
    return found


def test_only_the_homes_write_to_a_terminal(sources: Mapping[str, ast.Module]) -> None:
    found = {
        name: lines
        for name, tree in sources.items()
        if name not in HOMES and not name.startswith("testing/") and (lines := _writes(tree))
    }
    asked = {name for name in found if "isatty" in ast.unparse(sources[name])}  # whether it is a terminal
    assert set(found) - asked == set(OWN_TEXT) - asked, found
