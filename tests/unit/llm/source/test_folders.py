"""Copies of models' folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from forebay.errors import InvalidOption
from forebay.llm.source.folders import local_copy

URI = "memory://models-to-copy/a"


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fsspec.filesystem("memory").pipe("/models-to-copy/a/config.json", b"{}")
    return tmp_path / f"forebay-models-{os.geteuid()}"


def test_a_copy_is_made_once_for_its_user_alone(copies: Path) -> None:
    first = Path(local_copy(URI))
    assert (first / "config.json").read_text() == "{}"
    assert first.parent == copies
    assert copies.stat().st_mode & 0o077 == 0
    assert local_copy(URI) == str(first)


def link(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def given_away(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, 12345)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "plant", [link, open_to_all, Path.touch, pytest.param(given_away, marks=as_root)], ids=lambda each: each.__name__
)
def test_a_folder_that_somebody_else_made_is_not_used(copies: Path, plant: Callable[[Path], object]) -> None:
    plant(copies)
    with pytest.raises(InvalidOption, match=r"where models are copied to.* Set TMPDIR to a folder of your own"):
        local_copy(URI)
