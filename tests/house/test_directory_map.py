"""The map of the code: every room is in it, and every path that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

PATH = re.compile(r"`((?:[a-z_]+/)*[a-z_]+(?:/|\.py))`")
FLOORS = ("", "data", "training")
MOST_ENTRIES = 20


def test_the_package_has_few_entries(repository: Path) -> None:
    entries = [path.name for path in (repository / "platform" / "forebay").iterdir() if path.name != "__pycache__"]
    assert len(entries) > 10
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_every_room_of_a_floor_is_on_the_map(repository: Path) -> None:
    package = repository / "platform" / "forebay"
    text = (package / "README.md").read_text()
    rooms = [
        path.name for floor in FLOORS for path in (package / floor).iterdir() if path.is_dir() and path.name[0] != "_"
    ]
    assert len(rooms) > 30
    assert [name for name in rooms if f"`{name}/`" not in text] == []


def test_every_path_on_the_map_exists(repository: Path) -> None:
    package = repository / "platform" / "forebay"
    found = PATH.findall((package / "README.md").read_text())
    assert len(found) > 40
    places = [package, *(path for path in package.rglob("*") if path.is_dir())]
    assert [name for name in found if not any((place / name).exists() for place in places)] == []
