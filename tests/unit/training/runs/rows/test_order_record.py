"""The order that a run's folder has, and how it differs from a job's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.training.runs.rows.order_record import FILE_NAME, other_order, record_order
from forebay.training.runs.run_folder import RunFolder


def test_what_differs_from_the_last_start_is_named(make_data: Callable[..., Data], tmp_path: Path) -> None:
    data, folder = make_data(), RunFolder.at(str(tmp_path / "ctr"))
    assert other_order(data.plan, folder) == "", "a run of an earlier release has no record"
    record_order(data, folder)
    assert other_order(data.plan, folder) == ""
    more = make_data(rows=(13, 1, 20, 9, 7), folder="more").plan
    assert other_order(more, folder) == "data (43 rows in 2 files; now 50 in 2)"
    other = build_plan(data.plan.manifests[0], seed=4, lanes=2, shuffle_rows=16)
    assert other_order(other, folder) == "seed (3; now 4), lanes (4; now 2)"
    (tmp_path / "ctr" / FILE_NAME).write_text("[")
    assert other_order(other, folder) == ""
