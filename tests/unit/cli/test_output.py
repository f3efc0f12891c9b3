"""Progress is a bar on a terminal, and a few lines in a log. The screen is never wider than it is."""

from __future__ import annotations

import io
import sys

import pytest
from tests.waiting import SetClock

from forebay.cli.llm.score import progress_line
from forebay.cli.output import progress_bar
from forebay.llm.score.pool.counters import ScoreProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps(clock: SetClock, *, in_bytes: bool = False, hidden: bool = False) -> None:
    """A task of ten minutes, a step each second."""
    with progress_bar(in_bytes=in_bytes, hidden=hidden) as bar:
        bar.get_time = clock
        task = bar.add_task("writing", total=600)
        for second in range(600):
            clock.now = second
            bar.advance(task)


@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_log_gets_lines_less_and_less_often_and_the_end(capsys: pytest.CaptureFixture[str], in_bytes: bool) -> None:
    steps(SetClock(), in_bytes=in_bytes)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert 10 < len(lines) < 50 and all(line.startswith("writing") for line in lines)
    assert ("600/600 bytes" if in_bytes else "600/600") in lines[-1]
    assert "━" not in "".join(lines[:-1]), "a bar in a log says nothing"


def test_a_log_has_no_bar_of_what_did_not_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as bar:
        bar.add_task("writing", total=None)
    assert capsys.readouterr().err.strip() == ""


def test_who_asked_for_a_document_gets_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    steps(SetClock(), hidden=True)
    assert capsys.readouterr() == ("", "")


def test_a_line_of_scoring_fits_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    show = progress_line()
    for done in (12_345_678, 98_765_432, 100_000_000):
        show(
            ScoreProgress(
                rows=100_000_000,
                rows_before=0,
                rows_done=done,
                errors=12_345,
                output_tokens=10**10,
                workers=128,
                seconds=3600.0,
            )
        )
    parts = screen.getvalue().split("\r")
    assert len(parts) == 4 and all(len(part.rstrip("\n")) < 80 for part in parts)
    assert parts[-1].startswith("100,000,000 of 100,000,000 rows")
