"""The page on wrong input names tests that exist.

The job files and rules that it counts on are enough.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.fleet.rayjob.test_preflight import BROKEN
from tests.unit.fleet.spec.test_job_toml import WRONG

ROOT = Path(__file__).parents[3]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "bad-input.md").read_text())))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_named_tests_are_there(file: str) -> None:
    defined = set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / "unit" / file).read_text(), re.MULTILINE))
    assert {name for found, name in NAMED if found == file} <= defined


def test_enough_wrong_jobs_and_broken_rules() -> None:
    assert len({(good, wrong) for good, wrong, *_ in WRONG}) >= 40
    assert len({fault for fault, _ in BROKEN}) >= 25
