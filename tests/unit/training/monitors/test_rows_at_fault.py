"""The text of a verdict names rows of a table, and the command that names windows: the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import forebay as fb
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.rows_at_fault import rows_text
from forebay.world import World

WORLDS = [World(rank=rank, size=2) for rank in range(2)]


@pytest.fixture
def plans(parquet_folder: Callable[..., Path]) -> dict[str, fb.Plan]:
    manifest = fb.scan(parquet_folder({"a.parquet": [40, 24]}))
    series = fb.Sequences(manifest, past=fb.History(["x1"], steps=4), entity="c0", time="id")
    return {"rows": fb.build_plan(manifest, lanes=4), "windows": fb.build_plan(series, lanes=4)}


def test_rows_of_some_or_all_ranks_are_named(plans: dict[str, fb.Plan]) -> None:
    plan, verdict = plans["rows"], Verdict(action=Action.SKIP, step=3, reason="bad", rows="own")
    names = [[f"a.parquet:{b}:{r}" for b, r in zip(*plan.batch(1, 8, 8, world), strict=True)] for world in WORLDS]
    one = rows_text(verdict, [(1, 8, 16)], plan, WORLDS[1:], "runs/a b")
    command = "forebay rows 'runs/a b' --step 3 --rank 1 --skipped"
    assert one == f". Rows on rank 1: {', '.join(names[1][:3])} and others of 8 (all: {command})"
    both = rows_text(verdict, [(1, 8, 16)], plan, WORLDS, "")
    every = [f"a.parquet:{block}:{row}" for block, row in zip(*plan.batch(1, 8, 8), strict=True)]
    assert both == f". Rows: {', '.join(every[:3])} and others of 8"


@pytest.mark.parametrize(
    ("run", "ranks", "text"),
    [
        ("runs/a", WORLDS, ". Windows: forebay rows runs/a --step 3"),
        ("runs/a", WORLDS[:1], ". Windows on rank 0: forebay rows runs/a --step 3 --rank 0"),
        ("", WORLDS, ""),
    ],
)
def test_windows_are_named_by_a_command(run: str, ranks: list[World], text: str, plans: dict[str, fb.Plan]) -> None:
    verdict = Verdict(action=Action.STOP, step=3, reason="bad", rows="all")
    assert rows_text(verdict, [(1, 8, 16)], plans["windows"], ranks, run) == text
