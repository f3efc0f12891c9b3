"""A run's line in `forebay jobs --ray`.

Asking a cluster is tested under Ray.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

from forebay.cli.runs import RUN_COLUMNS
from forebay.training.runs.status import RunStatus

STATUS = RunStatus(
    name="ctr",
    driver="ray",
    state="training",
    world_size=2,
    target=2,
    min_workers=1,
    max_workers=8,
    epoch=3,
    epochs=40,
    step=1200,
    position=640,
    rows_per_s=12_345.6,
    last_commit_step=1180,
    last_commit_age_s=3.2,
    started_at=0.0,
    node="f00",
    path="runs/ctr",
)


def line(**facts: object) -> dict[str, str]:
    status = replace(STATUS, started_at=time.time() - 7200, **facts)  # type: ignore[arg-type]
    return {column.title: column.text(status) for column in RUN_COLUMNS}


def test_line_of_a_run() -> None:
    assert line() == {
        "run": "ctr",
        "driver": "ray",
        "state": "training",
        "workers": "2 (1 to 8)",
        "epoch": "4 of 40",
        "step": "1200",
        "rows/s": "12,346",
        "checkpoint": "step 1180, 3 s ago",
        "age": "2 h",
    }


def test_line_says_what_is_wanted_where_that_is_not_so_yet() -> None:
    assert line(target=4)["workers"] == "2 -> 4 (1 to 8)"
    assert line(min_workers=2, max_workers=2)["workers"] == "2"
    assert line(last_commit_step=None, last_commit_age_s=None)["checkpoint"] == "-"
    assert line(epoch=40)["epoch"] == "40 of 40"


def test_steering_needs_no_torch() -> None:
    code = "import sys; import forebay.cli.app, forebay.training.driver.elastic.client; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
