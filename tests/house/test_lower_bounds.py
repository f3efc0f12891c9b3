"""Lower bounds of dependencies allow no version with a known hole that our code reaches."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

FIXED_IN = {
    "fsspec": "2026.6",  # templates of reference:// ran commands
    "requests": "2.32.4",  # CVE-2024-35195, CVE-2024-47081
    "pillow": "12.1.1",  # CVE-2023-50447, CVE-2024-28219, and a write out of bounds by a PSD file
    "flask-cors": "6",  # CVE-2024-6839, CVE-2024-6844, CVE-2024-6866
}


def test_no_lower_bound_allows_a_known_hole(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found = {}
    for each in map(Requirement, texts):
        if each.name in FIXED_IN:
            found[each.name] = True
            lowest = next(str(bound.version) for bound in each.specifier if bound.operator == ">=")
            assert tuple(map(int, lowest.split("."))) >= tuple(map(int, FIXED_IN[each.name].split("."))), str(each)
    assert found.keys() == FIXED_IN.keys()
