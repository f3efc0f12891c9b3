"""Log of a bench's processes, a line of JSON for each note."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def note(path: str, facts: Mapping[str, Any]) -> None:
    """Append a line to a log. A short line is one write, so lines of several processes are never mixed."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps(facts) + "\n").encode())
    os.close(file)


def read_notes(path: str) -> list[dict[str, Any]]:
    """All lines of a log. Empty if the file does not exist."""
    log = Path(path)
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
