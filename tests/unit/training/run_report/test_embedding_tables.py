"""Embedding tables of a run are in its report: one line each, and no pictures and tiles for each of their metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.unit.training.run_report.made import EVIL, write_run

from forebay.training.run_report.embedding_tables import tables_section
from forebay.training.run_report.recorded_run import load_run, recorded
from forebay.training.run_report.report_page import report_of

USE = {"hottest_share": 0.0421, "sent_bytes": 3 << 20, "collisions": 12_300.0, "bad_ids": 0.25}


def test_tables_have_a_line_each(tmp_path: Path) -> None:
    result = load_run(write_run(tmp_path)).result
    assert result is not None
    metrics = {"auc": 0.7, **{f"tables/user/{key}": value for key, value in USE.items()}, "tables/a.b/rows": 7.0}
    *before, last = result.epochs
    page = report_of([recorded(replace(result, epochs=(*before, replace(last, metrics=metrics))))])
    section = re.search("<h2>Embedding tables</h2>.*?</section>", page, re.DOTALL)
    assert section is not None
    heads = re.findall("<th [^>]*>(.*?)</th>", section[0])
    assert heads == ["table", "hottest id", "bytes sent", "collisions", "ids beyond it", "rows"]
    cells = re.findall("<td>(.*?)</td>", section[0])
    assert cells == ["user", "4.2 %", "3.00 MiB", "12.3k", "0.25", "-", "a.b", "-", "-", "-", "-", "7"]
    assert "tables/" not in page


def test_a_run_without_tables_has_no_section_of_them() -> None:
    assert tables_section({"loss": 0.3}) == ""


def test_names_of_tables_are_escaped() -> None:
    assert EVIL not in tables_section({f"tables/{EVIL}/rows": 1.0})
