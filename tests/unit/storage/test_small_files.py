"""Small files, read whole."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from forebay.storage.filesystem import resolve
from forebay.storage.small_files import find_small, read_small


def test_content_is_returned_as_stored(tmp_path: Path) -> None:
    stored = gzip.compress(b"text")
    (tmp_path / "a.gz").write_bytes(stored)
    assert read_small(resolve(tmp_path).child("a.gz")) == stored == find_small(resolve(tmp_path / "a.gz"))


def test_a_missing_file(tmp_path: Path) -> None:
    place = resolve(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert find_small(place.child("missing")) is None
    assert find_small(place.child("file/below")) is None
    with pytest.raises(FileNotFoundError):
        read_small(place.child("missing"))
