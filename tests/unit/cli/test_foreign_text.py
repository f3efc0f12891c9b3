"""No command obeys what others have written: names of columns and files, errors, words of a shell's pattern."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.cli.app import main

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred \u202etxt.exe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data", "corrupt"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({f"x{HOSTILE}": [1.0], "y": [f"v{HOSTILE}"]}), tmp_path / "data" / f"a{HOSTILE}.parquet")
    (tmp_path / "corrupt" / f"f{HOSTILE}.parquet").write_bytes(b"PAR1xxxxPAR1")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["scan", "{data}", "--out", "{out}"],
        ["scan", "{data}", "--columns", "nope"],
        ["scan", "{corrupt}"],
        ["scan", "{data}/missing" + HOSTILE],
        ["scan", f"b{HOSTILE}.parquet", "a.parquet"],
        ["scan", f"--a{HOSTILE}"],
        [f"scn{HOSTILE}"],
        ["rows", "{data}"],
        ["rows", "{data}", "--json"],
        ["plan", "{data}" + HOSTILE],
        ["run", f"job{HOSTILE}.py"],
        ["report", f"run{HOSTILE}"],
        ["cache", "ls", "--path", "{data}" + HOSTILE],
    ],
)
def test_foreign_text_is_shown_and_not_obeyed(
    forebay: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(folder)
    names = {"data": folder / "data", "corrupt": folder / "corrupt", "out": folder / "m.json"}
    said = forebay(*(word.format(**names) for word in words))
    text = said.out + said.err
    assert [each for each in text if not each.isprintable() and each not in "\n\t"] == []
    assert "\\x1b[2J" in text or "\\u001b[2J" in text


def test_a_line_of_the_log_is_shown_too(forebay: Callable[..., Any]) -> None:
    forebay("--version")
    last = logging.lastResort
    assert last is not None
    line = last.format(logging.LogRecord("forebay", logging.WARNING, "", 1, "the file %s", (HOSTILE,), None))
    assert line.startswith("the file \\x1b]0;title\\x07")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_a_stream_lacks_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"größe": ["€5"], "x": [1.0]}), tmp_path / "a.parquet")
    for words in (["rows", str(tmp_path)], ["scan", str(tmp_path)]):
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        sys.stdout.seek(0)
        text = sys.stdout.read()
        assert ("größe" if encoding == "latin-1" else "gr\\xf6\\xdfe") in text
        assert "\\u20ac5" in text or words[0] == "scan"


def test_a_traceback_is_shown_too() -> None:
    script = (
        "from forebay.cli.app import main\n"
        f"try: main(['--version'])\nexcept SystemExit: raise ValueError({HOSTILE!r}) from None"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "ValueError: \\x1b]0;title" in done.stderr and "\x1b" not in done.stderr
