"""`forebay rows` prints the rows of a step as a table of 80 columns, as JSON, and as a skip list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_a_step_is_shown_in_80_columns_with_values(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forebay: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = forebay("rows", run, "--step", 2, "--show", "--out", tmp_path / "skip.txt").out
    assert shown.splitlines()[0] == "step 2: epoch 0, rows 32 to 64; 32 rows of 1 worker"
    assert max(map(len, shown.splitlines())) <= 80
    assert "... and 12 more; --json prints all." in shown
    facts = json.loads(forebay("rows", run, "--step", 2, "--show", "--json").out)
    names = [row["name"] for row in facts["rows"]]
    assert (tmp_path / "skip.txt").read_text().splitlines() == names and len(set(names)) == 32
    assert facts["batches"] == [{"epoch": 0, "start": 32, "stop": 64}] and facts["world"] == 1
    for row in facts["rows"]:
        # Ids count the rows of both row groups.
        assert row["values"]["id"] == 40 * row["row_group"] + row["row"]
        assert row["values"]["day"] == 1 and row["file"] == "day=1/a.parquet" and row["rank"] == 0
    assert set(names[:20]) <= set(shown.split())
    some = forebay("rows", run, "--step", 2, "--rank", 0, "--show", "--columns", "id,tags").out
    assert "x1" not in some and "tags" in some and "rank 0 of 1" in some


def test_what_cannot_be_shown_is_an_error(run: str, tmp_path: Path, forebay: Cli) -> None:
    for options, text in (
        (["--step", "3"], "InvalidOption: step=3 is beyond the run, which has trained 2 steps. Give 1 to 2."),
        (["--step", "0"], "InvalidOption: step=0"),
        (["--step", "1", "--rank", "1"], "InvalidOption: rank=1: step 1 was trained by 1 worker. Give 0."),
        (["--step", "1", "--columns", "id"], "InvalidOption: --columns id chooses values to print. Add --show"),
        (["--step", "1", "--show", "--columns", "nope"], "MissingColumn: "),
        (["--step", "1", "--skipped"], "no batch was skipped there. Steps with a skipped batch: none."),
    ):
        said = forebay("rows", run, *options)
        assert said.code == 2 and text in said.err
    said = forebay("rows", tmp_path, "--step", 1)
    assert "has no order.json, which says in which order a run reads its rows" in said.err
