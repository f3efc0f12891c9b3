"""A run that a fleet has placed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.training.runs import storage_check


def test_the_first_act_of_a_placed_run_is_the_check(
    forebay: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(storage_check.require_usable_storage, "__defaults__", (0.0,))
    monkeypatch.setenv("FOREBAY_RUN_STORAGE", str(tmp_path / "file" / "runs"))
    monkeypatch.setenv("FOREBAY_RUN_ATTEMPT", "1/token")
    # Its job file is not there either: that is found later.
    said = forebay("run", tmp_path / "nowhere.py", "--driver", "local")
    assert said.code == 78
    assert said.err.startswith("UnusableStorage: the storage")
