"""Rooms: one name for one class, and no import that is hidden from the contracts."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest
from tests.house.figures import CLASS_ROOTS, PACKAGE, circles, classes_by_name, nodes_of

Trees = Mapping[str, ast.Module]

# The tables of public names, of drivers, and of names of Ray. Types that a user's annotation names.
MAY_IMPORT_BY_NAME = {
    "data/transform/fingerprint/reference_walk.py",  # what a function of a user imports
    "fleet/spec/signature.py",
    "runtime/late_import.py",
    "training/driver/driver.py",
    "ray_cluster/private_names.py",
}


def test_every_class_has_a_name_of_its_own(trees: Trees) -> None:
    classes = classes_by_name({file: tree for file, tree in trees.items() if file.startswith(CLASS_ROOTS)})
    assert len(classes) > 400
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_no_module_of_ours_is_imported_by_its_name(sources: Trees) -> None:
    """import-linter does not see such an import, and a rename would miss it."""
    by_name = {
        file
        for file, tree in sources.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.Call) and _imports_ours(node)
    }
    assert by_name == MAY_IMPORT_BY_NAME


def _imports_ours(call: ast.Call) -> bool:
    """Whether the import is of our package, or may be."""
    if ast.unparse(call.func).rpartition(".")[2] not in ("import_module", "__import__"):
        return False
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            return name.partition(".")[0] == "forebay"
    return True


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ("import_module('forebay.sweep.sweep')", True),
        ("importlib.import_module(name)", True),
        ("import_module('ray.tune')", False),
    ],
)
def test_the_check_sees(line: str, is_seen: bool) -> None:
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    assert _imports_ours(statement.value) == is_seen


def test_no_modules_import_each_other_in_a_circle(trees: Trees) -> None:
    assert circles(trees) == []


def test_a_circle_is_seen() -> None:
    lines = {"sweep": "import_module('forebay.run')", "run": "from forebay import scan", "scan": "import forebay.sweep"}
    trees = {f"{PACKAGE}/{name}.py": ast.parse(line) for name, line in lines.items()}
    assert circles(trees) == [["forebay.run", "forebay.scan", "forebay.sweep"]]
