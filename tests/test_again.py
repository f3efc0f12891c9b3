"""Of tests that failed, those that pass alone do not count and are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests import again
from tests.processes import AFTER_ALL

TESTS = """
from pathlib import Path

def test_passes():
    pass

def test_unstable():
    Path("was here").touch(exist_ok=False)
"""


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("passes", [True, False])
def test_what_fails_twice_counts(
    passes: bool, crashed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "was here").touch()
    first = subprocess.run([sys.executable, "-m", "pytest", "-q"], check=False)
    assert first.returncode == 1
    if passes:
        (tmp_path / "was here").unlink()
    crash = f"{AFTER_ALL}1"
    if crashed:
        again.FAILED.write_text(json.dumps({crash: True} | json.loads(again.FAILED.read_text())))
    capfd.readouterr()
    assert again.main() == (0 if passes else 1)
    out = capfd.readouterr().out
    assert "1 passed" in out if passes else "1 failed" in out
    assert (f"{again.CRASHED}: {crash}" in out) is crashed
    assert (
        out.splitlines()[-1].strip() == f"{again.PASSED if passes else again.FAILED_TWICE}: test_it.py::test_unstable"
    )


def test_a_crash_alone_runs_no_test_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(again, "FAILED", tmp_path / "lastfailed")
    again.FAILED.write_text(json.dumps({f"{AFTER_ALL}0": True}))
    assert again.main() == 0
    assert capfd.readouterr().out == f"   {again.CRASHED}: {AFTER_ALL}0\n"


def test_many_failures_are_no_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(again, "FAILED", tmp_path / "lastfailed")
    for failed in ("{}", '{"a": true, "b": true, "c": true, "d": true, "e": true, "f": true}'):
        (tmp_path / "lastfailed").write_text(failed)
        assert again.main() == 1
    assert capsys.readouterr().out == ""
