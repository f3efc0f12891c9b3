"""The origin of a start names its code and packages, and holds no secret."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
from functools import partial
from pathlib import Path

import pytest

from forebay.training.runs.timeline.origin import code_facts, commit_of, installed_packages

COMMIT = "12ab" * 10


def train(worker: object, rate: float) -> None:
    """Train function of no use."""


def test_the_code_is_known_by_its_file_and_changes_with_it() -> None:
    facts = code_facts(partial(train, rate=0.1))
    assert facts["function"] == "train" and facts["file"] == "test_origin.py"
    assert facts["sha256"] == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    assert code_facts(math.sin) == {"function": "sin"}


def test_the_commit_is_read_from_the_files_of_git(tmp_path: Path) -> None:
    git, inner, second = tmp_path / ".git", tmp_path / "jobs" / "ctr", tmp_path / "second"
    inner.mkdir(parents=True)
    assert commit_of(Path(os.sep)) is None
    git.mkdir()
    assert commit_of(inner) is None
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert commit_of(inner) == COMMIT
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert commit_of(inner) == COMMIT
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("34cd\n")
    assert commit_of(inner) == "34cd"
    (git / "worktrees" / "second").mkdir(parents=True)
    (git / "worktrees" / "second" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "second" / "commondir").write_text("../..\n")
    second.mkdir()
    (second / ".git").write_text(f"gitdir: {git}/worktrees/second\n")
    assert commit_of(second) == "34cd"


def test_packages_that_are_installed_have_versions() -> None:
    found = installed_packages()
    assert {"python", "forebay", "torch", "ray", "pyarrow"} <= set(found)
    assert all(version[0].isdigit() for version in found.values())


def test_a_source_folder_that_is_not_installed_has_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert list(installed_packages.__wrapped__()) == ["python"]
