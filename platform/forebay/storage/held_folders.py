"""Folders that this process has had, and never creates again.

A share that was unmounted leaves an empty folder on another disk. What is written there by its name is lost, or hides
what the share holds.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from forebay.storage.filesystem import Location

_held: Counter[Path] = Counter()
_lock = threading.Lock()


def hold(folder: Location) -> None:
    """Let no write of this process create `folder`, until `let_go`.

    Only a local folder, which exists now: object stores have none.
    """
    if folder.is_local:
        with _lock:
            _held[Path(folder.path)] += 1


def let_go(folder: Location) -> None:
    """End what one call of `hold` began."""
    if folder.is_local:
        path = Path(folder.path)
        with _lock:
            _held[path] -= 1
            if _held[path] <= 0:
                del _held[path]


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, as far as they are missing.

    Raises `FileNotFoundError` where a held folder is missing, below which `folder` lies.
    """
    path = (folder, *folder.parents)
    held = next((each for each in path if each in _held), None)
    if held is None:
        folder.mkdir(parents=True, exist_ok=True)
        return
    for each in reversed(path[: path.index(held)]):
        each.mkdir(exist_ok=True)
