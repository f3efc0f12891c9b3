"""A sweep and its trials in `forebay jobs --ray`.

Asking a cluster is tested under Ray.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.unit.sweep.made import record, trial

from forebay.cli.runs import trial_table
from forebay.sweep.record.record import Record
from forebay.sweep.record.status import SweepStatus
from forebay.sweep.report.trial_columns import WORKERS, TrialRow
from forebay.training.runs.status import RunStatus


def status(name: str, target: int) -> RunStatus:
    return RunStatus(
        name=name,
        driver="ray",
        target=target,
        min_workers=1,
        max_workers=4,
        epoch=12,
        epochs=27,
        rows_per_s=123_456.0,
        started_at=0.0,
        node="here",
        path="runs",
    )


def standing(*values: float, **facts: str) -> SweepStatus:
    """Stopped, waiting and running trials.

    One stopped trial per value, then one that waits and two that run.
    """
    ended = [trial(f"6d6ab_{number:05}", value, state="stopped", workers=0) for number, value in enumerate(values)]
    waits = trial("6d6ab_00020", state="pending", workers=0)
    run = [trial(f"6d6ab_{number:05}", value, lr=0.1) for number, value in ((21, 0.6), (22, 0.65))]
    made: Record = record(*ended, waits, *run, elapsed_s=425.0, **facts)
    return SweepStatus.of(made, "runs/ctr")


def drawn(sweep: SweepStatus, width: int, *, colors: bool = False) -> list[str]:
    """The table without its frame.

    Each trial that runs has a run.
    """
    file = io.StringIO()
    console = Console(
        file=file, width=width, highlight=False, force_terminal=colors, color_system="standard" if colors else None
    )
    runs = {run.name: run for run in (status("ctr.6d6ab_00021", 2), status("ctr.6d6ab_00022", 1))}
    console.print(trial_table(sweep, runs))
    lines = [line.strip() for line in file.getvalue().splitlines()]
    return [line for line in lines if line and not line.startswith("─")]


@pytest.mark.parametrize("width", [80, 120])
def test_a_line_per_trial_and_nothing_cut_or_folded(width: int) -> None:
    assert [line.split() for line in drawn(standing(0.55, 0.7312), width)] == [
        ["trial", "state", "workers", "epochs", "auc", "best", "rows/s", "time"],
        ["6d6ab_00022", "running", "1", "12", "of", "27", "0.6500", "0.6500", "123k", "7:05"],
        ["6d6ab_00021", "running", "1", "->", "2", "12", "of", "27", "0.6000", "0.6000", "123k", "7:05"],
        ["6d6ab_00020", "pending", "-", "-", "-", "-", "-", "0:01"],
        ["6d6ab_00001", "stopped", "-", "1", "0.7312", "0.7312", "-", "0:11"],
        ["6d6ab_00000", "stopped", "-", "1", "0.5500", "0.5500", "-", "0:11"],
    ]


def test_where_the_lowest_is_the_best() -> None:
    shown = drawn(standing(0.55, 0.7312, mode="min", metric="loss"), 80)
    assert shown[0].split()[4] == "loss"
    assert [line[:11] for line in shown[1:]] == [f"6d6ab_{number:05}" for number in (21, 22, 20, 0, 1)]


def test_the_best_trial_is_in_bold() -> None:
    lines = [line for line in drawn(standing(0.55, 0.7312), 80, colors=True) if "6d6ab" in line]
    bold = [line for line in lines if "\x1b[1m" in line]
    assert len(bold) == 1 and "6d6ab_00001" in bold[0]


def test_a_long_name_of_a_metric_is_cut_and_nothing_else() -> None:
    head, *lines = drawn(standing(0.7, metric="weighted_normalized_entropy"), 80)
    assert "weighted" in head and "…" in head
    assert len(lines) == 4 and "…" not in "".join(lines)


def test_a_trial_that_loses_all_its_workers() -> None:
    trial_standing = standing(0.7).trials[0]
    assert WORKERS.text(TrialRow.of_status(trial_standing, status("ctr", 0))) == "1 -> 0"
