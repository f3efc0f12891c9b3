"""Progress is a bar on a terminal, and a few lines in a log. The screen is never wider than it is."""

from __future__ import annotations

import io
import os
import sys
from functools import partial

import pytest
from tests.waiting import SetClock

from forebay.cli.llm.score import progress_line
from forebay.cli.output import prepare_streams, print_error, print_facts, print_line, progress_bar
from forebay.errors import WriteFailed
from forebay.events import Preparing
from forebay.llm.score.pool.counters import ScoreProgress
from forebay.training.callbacks.progress import Progress


def place(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Make a file the standard stream of this process."""
    stream = io.TextIOWrapper(io.FileIO(number, "w"), "ascii", write_through=True)
    monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, f"__{name}__", stream)


def test_a_full_standard_output_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, "stdout", os.open("/dev/full", os.O_WRONLY))
    prepare_streams()
    with pytest.raises(WriteFailed, match=r"standard output cannot be written \(No space left on device\)"):
        print_line("one")
    print_line("after the error, and at the end of the process")


@pytest.mark.parametrize("fault", ["full", "nobody reads"])
def test_no_command_ends_for_a_line_of_its_log(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "full":
        place(monkeypatch, "stderr", os.open("/dev/full", os.O_WRONLY))
    else:
        read, write = os.pipe()
        os.close(read)
        place(monkeypatch, "stderr", write)
    prepare_streams()
    print_line("one", err=True)
    steps(SetClock())
    Progress()(Preparing(what="starting"), control=None)  # type: ignore[arg-type] # it asks for nothing
    print_error(WriteFailed("no room"), as_json=True)


def test_a_reader_that_has_enough_ends_the_command_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    place(monkeypatch, "stdout", write)
    prepare_streams()
    for show in (partial(print_line, "one"), partial(print_facts, {"one": 1})):
        with pytest.raises(BrokenPipeError):
            show()


def test_streams_that_the_parent_closed_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    prepare_streams()
    print_error(WriteFailed("no room"), as_json=False)
    print_facts({"one": 1})


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
