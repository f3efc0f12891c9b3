"""Child processes of the benches: a module of this folder, run by any interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def command(module: str, *arguments: Any, python: Path | str = sys.executable) -> list[str]:
    """Command line that runs `module`. Start it with `environment()`."""
    return [str(python), "-m", module, *map(str, arguments)]


def environment(*without: str) -> dict[str, str]:
    """Variables of this process, without those that begin with one of `without`. `bench` is on the path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    inherited = variables.get("PYTHONPATH")
    return variables | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([inherited] if inherited else [])])}
