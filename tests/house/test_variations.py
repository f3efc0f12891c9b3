"""`make test` runs every law of the drivers for at least one driver."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.house.figures import functions_of

SUITES = ("platform/forebay/testing/drivers/suite.py", "platform/forebay/testing/drivers/fixed_suite.py")
DRIVERS = (
    "tests/unit/training/driver/local/test_driver.py",
    "tests/ray/training/driver/ray_train/test_driver.py",
    "tests/horovod/test_suite.py",
)
# It has no nodes.
SKIPPED = {DRIVERS[0]: {"test_nodes_are_left_before_they_go_and_may_be_lost"}}

Trees = Mapping[str, ast.Module]


def test_no_law_is_a_variation_everywhere(trees: Trees) -> None:
    laws = {node.name for _, node in functions_of({file: trees[file] for file in SUITES}) if node.name[:5] == "test_"}
    assert len(laws) > 10
    left_out = [_variations(trees[file]) | SKIPPED.get(file, set()) for file in DRIVERS]
    assert all(left_out)
    assert laws & set.intersection(*left_out) == set()


def _variations(tree: ast.Module) -> set[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="variations")], value=ast.Call(args=[names])):
                return set(ast.literal_eval(names))
    return set()
