"""A table in a terminal, few lines in a log. A closed terminal does not end the sweep."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console
from tests.unit.sweep.made import record, trial

from forebay.sweep.record.record import Record, State
from forebay.sweep.report.live import LiveView, LogLines, TerminalTable, html_table, live_display, trial_table


class TableLog:
    """Lines whose clock the test sets."""

    def __init__(self) -> None:
        self.now, self.file = 0.0, io.StringIO()
        self.lines = LogLines(Console(file=self.file, width=140, highlight=False), clock=lambda: self.now)

    def show(self, made: Record, after_s: float = 1.0) -> list[str]:
        """New output since the last call."""
        self.now += after_s
        begin = len(self.file.getvalue())
        self.lines.show(made)
        return self.file.getvalue()[begin:].splitlines()


def test_a_log_has_a_line_per_best_value_and_per_end() -> None:
    log = TableLog()
    made = record(trial("a", lr=0.1), deadline_s=600.0, deadline_at_s=660.0)
    assert log.show(made) == ["   1:00  sweep ctr: for the highest auc, 10:00 until the deadline"]
    made.put(trial("a", 0.7, lr=0.1))
    made.put(trial("b", 0.6, lr=0.25))
    assert log.show(made) == ["   1:00  best auc 0.7000 (a): lr=0.1"]
    assert log.show(made) == []
    made.put(trial("b", 0.6, 0.8, lr=0.25, state="finished"))
    assert log.show(made) == [
        "   1:00  b finished after 2 epochs, auc 0.8000",
        "   1:00  best auc 0.8000 (b): lr=0.25",
    ]
    assert log.show(made, after_s=12.0) == [
        "   1:00  best auc 0.8000 (b), 1 running, 1 finished, 10:00 until the deadline"
    ]


def test_a_value_of_several_lines_is_one_line_of_a_log() -> None:
    out = io.StringIO()
    lines = LogLines(Console(file=out, width=120))
    lines.show(record(trial("a", 0.5)))
    lines.show(record(trial("b", 0.9, prompt="Be brief.\nBe kind.")))
    assert "(b): prompt=Be brief. Be kind.\n" in out.getvalue()


def test_a_log_that_goes_on_does_not_tell_again_what_had_ended() -> None:
    log = TableLog()
    made = record(trial("a", 0.7, state="finished"), trial("b", 0.6))
    assert log.show(made) == ["   1:00  sweep ctr: for the highest auc"]
    made.put(trial("b", 0.6, state="failed").with_state("failed", 12.0, "ValueError: no"))
    assert log.show(made) == ["   1:00  b failed after 1 epoch, auc 0.6000: ValueError: no"]


def test_a_terminal_shows_as_many_trials_as_it_has_room_for_and_all_at_the_end() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, height=12, highlight=False)
    table = TerminalTable(console)
    trials = [trial(f"t{number:02}", 0.5, state="stopped") for number in range(20)]
    made = record(*trials, trial("last", 0.4), slots=4)
    table.show(made)
    shown = file.getvalue()
    assert "and 15 more" in shown and shown.index("last") < shown.index("t00")
    assert "1 running, 20 stopped, 1 of 4 slots in use" in shown
    table.end(made)
    assert "t19" in file.getvalue()[len(shown) :]


@pytest.mark.parametrize("is_piped", [False, True])
def test_what_trials_print_comes_above_the_table(is_piped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, out = io.StringIO(), io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: not is_piped, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    table = TerminalTable(Console(file=screen, force_terminal=True, width=120, height=12, highlight=False))
    made = record(trial("a", 0.7))
    table.show(made)
    begin = len(screen.getvalue())
    print("rank 0: [bold]step[/bold] 7")
    print("careful", file=sys.stderr)
    table.end(made)
    shown = screen.getvalue()[begin:]
    assert (out.getvalue() == "") is not is_piped
    for said in ("careful", *(() if is_piped else ("rank 0: [bold]step[/bold] 7",))):
        assert shown.index(said) < shown.rindex("1 running")
    assert sys.stdout is out


def test_a_closed_terminal_is_said_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    file = io.StringIO()
    live = LiveView(LogLines(Console(file=file)))
    live(record(trial("a", 0.7)))
    file.close()
    with caplog.at_level(logging.WARNING):
        live(record(trial("a", 0.8)))
        live(record(trial("a", 0.9)))
        live.close()
    assert caplog.text.count("its display has ended") == 1


def test_nothing_is_shown_where_that_is_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    with live_display(wanted=False) as live:
        live(record(trial("a", 0.7)))
    assert capfd.readouterr() == ("", "")
    with live_display() as live:
        live(record(trial("a", 0.7, lr=0.1)))
    said = capfd.readouterr()
    assert said.out == "" and "sweep ctr" in said.err and "lr=0.1" in said.err


def test_a_notebook_table_holds_only_text() -> None:
    shown = html_table(record(trial("<b>", 0.7, kind="<script>"), name="<i>"))
    assert "<b>&lt;i&gt;</b>" in shown and "kind=&lt;script&gt;" in shown and "<script>" not in shown


@pytest.mark.parametrize("number", [17, 18, 19, 22])
@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_never_loses_the_footing(width: int, number: int) -> None:
    states: list[State] = ["running", "paused", "pending", "finished", "stopped", "failed"]
    trials = [trial(f"6d6ab_{each:05}", 0.7, state=states[each % 6], lr=0.01) for each in range(number)]
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=24, highlight=False)
    TerminalTable(console).show(record(*trials, slots=8, deadline_s=600.0, deadline_at_s=660.0))
    lines = file.getvalue().splitlines()
    assert len(lines) <= 24 and lines[-1].endswith("until the deadline")
    shown = sum("6d6ab_" in line and "best auc" not in line for line in lines)
    # An empty line, head, rule, an empty line and two footer lines leave 18. "and N more" takes one of them.
    assert shown == (number if number <= 18 else 17)
    assert any(f"and {number - shown} more" in line for line in lines) is (number > 18)


def drawn(made: Record, width: int) -> tuple[list[str], str]:
    """The words of the header, and the line of the only trial."""
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(trial_table(made, width=width))
    _, head, _, line, *_ = file.getvalue().splitlines()
    return head.split(), line.strip()


def test_in_a_narrow_terminal_only_the_config_is_cut() -> None:
    made = record(trial("6d6ab_00001", 0.7303, lr=0.00152, kind="adam", dim=4, global_batch=512))
    head, line = drawn(made, 100)
    assert head == ["trial", "state", "epochs", "auc", "best", "workers", "rows/s", "time", "config"]
    assert line.split()[:8] == ["6d6ab_00001", "running", "1", "0.7303", "0.7303", "1", "2.00k", "1:00"]
    assert line.split()[8] == "lr=0.00152," and line.endswith("…")


def test_a_narrow_terminal_leaves_out_columns_so_that_the_config_can_be_read() -> None:
    made = record(trial("6d6ab_00001", 0.7303, lr=0.00152, kind="adam", dim=4))
    head, line = drawn(made, 80)
    assert head == ["trial", "state", "epochs", "auc", "best", "workers", "config"]
    assert line.split()[:6] == ["6d6ab_00001", "running", "1", "0.7303", "0.7303", "1"]
    assert "lr=0.00152, kind=adam" in line


def test_a_long_name_of_a_metric_leaves_room_for_the_config() -> None:
    made = record(trial("6d6ab_00001", 0.7303, lr=0.00152, kind="adam"), metric="weighted_normalized_entropy")
    head, line = drawn(made, 80)
    assert head[3].startswith("weighted") and head[3].endswith("…")
    assert "lr=0.00152" in line and "0.7303  0.7303" in line
