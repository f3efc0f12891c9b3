"""Every table of trials shows the same values in the same words."""

from __future__ import annotations

from tests.unit.sweep.made import record, trial

from forebay.sweep.record.record import Record
from forebay.sweep.record.status import SweepStatus
from forebay.sweep.report.trial_columns import (
    TrialColumn,
    TrialRow,
    data_columns,
    live_columns,
    page_columns,
    status_columns,
)


def texts(columns: tuple[TrialColumn, ...], row: TrialRow) -> dict[str, str]:
    return {column.title: column.text(row) for column in columns}


def rows(made: Record) -> list[TrialRow]:
    return [TrialRow.of_record(made, each) for each in made.trials.values()]


def test_a_trial_reads_alike_in_every_table() -> None:
    made = record(trial("a", 0.9, 0.6, state="finished", lr=0.25, workers=0), elapsed_s=200.0)
    (row,), (status,) = rows(made), SweepStatus.of(made, "runs").trials
    page = texts(page_columns("auc", ["lr"]), row)
    live = texts(live_columns("auc"), row)
    ps = texts(status_columns("auc"), TrialRow.of_status(status, None))
    assert page == {
        "trial": "a",
        "state": "finished",
        "epochs": "2",
        "best auc": "0.9000",
        "last auc": "0.6000",
        "time": "0:21",
        "lr": "0.25",
    }
    assert live | ps == live and set(live) - set(ps) == {"config"}
    assert {live[name] for name in ("trial", "state", "epochs", "best", "auc", "time")} < set(page.values())


def test_a_trial_that_has_not_started_has_dashes() -> None:
    (row,) = rows(record(trial("d", state="pending", workers=0)))
    shown = texts(live_columns("auc"), row)
    assert [shown[name] for name in ("epochs", "auc", "best", "workers", "rows/s")] == ["-"] * 5
    assert [column.value(row) for column in data_columns("auc", [], str)[2:6]] == [0, None, None, None]


def test_a_parameter_that_is_none_differs_from_one_that_is_missing() -> None:
    columns = page_columns("auc", ["decay", "lr"])[-2:]
    (row,) = rows(record(trial("a", 0.5, decay=None)))
    assert [column.text(row) for column in columns] == ["None", "-"]
    assert [column.value(row) for column in columns] == [None, None]
