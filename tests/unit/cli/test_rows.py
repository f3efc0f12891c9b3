"""`forebay rows` prints the rows of a step.

As a table of 80 columns, as JSON, and as a skip list.
"""

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
    shown = forebay("rows", run, "--step", 2, "--rows", 20, "--out", tmp_path / "skip.txt").out
    assert shown.splitlines()[0] == "step 2 (epoch 0, rows 32 to 64) on 1 worker: 20 of 32 rows"
    assert max(map(len, shown.splitlines())) <= 80
    assert "... and 12 more: --rows shows them." in shown
    facts = json.loads(forebay("rows", run, "--step", 2, "--json").out)
    names = [row["name"] for row in facts["rows"]]
    assert (tmp_path / "skip.txt").read_text().splitlines() == names and len(set(names)) == 32
    assert facts["batches"] == [{"epoch": 0, "start": 32, "stop": 64}] and facts["world"] == 1
    for row in facts["rows"]:
        # Ids count the rows of both row groups.
        assert row["values"]["id"] == 40 * row["row_group"] + row["row"]
        assert row["values"]["day"] == 1 and row["file"] == "day=1/a.parquet" and row["rank"] == 0
    assert set(names[:20]) <= set(shown.split())
    some = forebay("rows", run, "--step", 2, "--rank", 0, "--columns", "id,tags").out
    assert "x1" not in some and "tags" in some and "rank 0 of 1" in some
    assert "--out FILE writes their names." in some
    names_only = forebay("rows", run, "--step", 2, "--rows", 20, "--names").out
    assert set(names[:20]) <= set(names_only.split()) and "id" not in names_only.split()


def test_what_cannot_be_shown_is_an_error(run: str, tmp_path: Path, forebay: Cli) -> None:
    for options, text in (
        (["--step", "3"], "InvalidOption: step=3 is beyond the run, which has trained 2 steps. Give 1 to 2."),
        (["--step", "0"], "InvalidOption: step=0"),
        (["--step", "1", "--rank", "1"], "InvalidOption: rank=1: step 1 was trained by 1 worker. Give 0."),
        (["--names", "--columns", "id"], "BadUsage: --columns id chooses values, and --names prints none."),
        (["--step", "1", "--columns", "nope"], "MissingColumn: "),
        (["--step", "1", "--skipped"], "no batch was skipped there. Steps with a skipped batch: none."),
    ):
        said = forebay("rows", run, *options)
        assert said.code == (2 if "--names" in options else 3) and text in said.err


def test_a_window_is_shown_by_the_spans_of_its_rows(
    windows_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forebay: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [windows_run, "--step", 2]
    shown = forebay("rows", *words, "--rows", 16, "--columns", "id,x1", "--out", tmp_path / "spans.txt").out
    assert shown.splitlines()[0] == "step 2 (epoch 0, windows 16 to 32) on 1 worker: 16 of 16 windows"
    found = json.loads(forebay("rows", *words, "--json").out)
    facts = found["rows"]
    assert {row["source"] for row in facts} == {"apart", "one"} and found["total"] == 16
    lines = [line.split() for line in forebay("rows", *words, "--columns", "id").out.splitlines()]
    text = [f"{span['file']}:{span['row_group']}:{span['first']}" for row in facts for span in row["spans"]]
    written = (tmp_path / "spans.txt").read_text().splitlines()
    assert [line.partition("..")[0] for line in written] == text
    for number, row in enumerate(facts):
        ids = [
            40 * span["row_group"] + place for span in row["spans"] for place in range(span["first"], span["last"] + 1)
        ]
        assert row["values"]["id"] == ids and len(ids) == 4
        assert row["name"].startswith(text[0])
        text = text[len(row["spans"]) :]
        named = row["name"] if len(row["spans"]) <= 2 else " and 2 more"
        assert row["source"] == "apart" or ids == list(range(ids[0], ids[0] + 4))
        assert named in shown or len(row["spans"]) == 3
        if number < 10:
            assert any(line[-4:] == [f"[{ids[0]},", f"{ids[1]},", f"{ids[2]},", f"{ids[3]}]"] for line in lines)
