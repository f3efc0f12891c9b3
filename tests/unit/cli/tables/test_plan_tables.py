"""`forebay tables plan` on a job file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = """
from functools import partial
import torch
from torch import nn
import forebay as fb

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = fb.Table(10_000_000_000, 16)
        self.site = fb.Table(10, 4, bad_ids="row 0")
        self.ad = fb.Table(6_400, 4, admission=fb.tables.Admission(min_count=2))
        self.out = nn.Linear(24, 1)
    def forward(self, batch):
        user = batch["user"]
        ad = torch.where(user == 79, 7, -(user % 20))
        rows = [self.user(user), self.site(batch["site"]), self.ad(ad)]
        return self.out(torch.cat(rows, 1)).squeeze(1)

def train(worker, has_tables):
    model = Model() if has_tables else nn.Sequential(nn.Flatten(), nn.Linear(1, 1))
    tables = fb.tables.RowWiseAdagrad(lr=0.1) if has_tables else None
    fb.fit(worker, model, partial(torch.optim.SGD, lr=0.01), nn.BCEWithLogitsLoss(), tables=tables)

def job(data: str, storage: str, has_tables: bool = True) -> fb.Job:
    transform = fb.Transform(user=fb.Label("id", dtype="int64"), site=fb.Label("c0", dtype="int64"),
                             label=fb.Label("clicked", dtype="float32"))
    plan = fb.build_plan(fb.scan(data), lanes=4)
    return fb.Job(train=partial(train, has_tables=has_tables), cache=None, storage=storage, workers=2,
                  data=fb.Data(plan=plan, transform=transform, global_batch=16))
"""


@pytest.fixture
def words(tmp_path: Path, parquet_folder: Callable[..., Path]) -> list[str]:
    data = parquet_folder({"a.parquet": [40, 40]})
    (tmp_path / "job.py").write_text(JOB)
    return [str(tmp_path / "job.py"), f"data={data}", f"storage={tmp_path / 'runs'}"]


def test_tables_are_planned_without_their_memory(forebay: Any, words: list[str], tmp_path: Path) -> None:
    """A table of 640 GB is planned, and nothing is saved."""
    said = forebay("tables", "plan", *words, "--workers", 2, "--workers", 4, "--steps", 3, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    user, site, _ = found["2"]
    assert (user["lookups"], user["demand"]["unique"], user["bad"]) == (16, 8, 0)
    assert found["4"][0]["demand"]["unique"] == 4
    assert site["demand"]["unique"] < 8 < site["lookups"] and site["costs"][0]["placement"] == "replicate"
    rows = next(cost for cost in user["costs"] if cost["placement"] == "rows")
    assert user["costs"][0] == rows and rows["sent_bytes"] == 8 * (4 + 2 * 64) / 2
    assert rows["memory_bytes"] == 10_000_000_000 * 68 // 2
    assert not (tmp_path / "runs").exists()


def test_plan_is_shown_to_people(forebay: Any, words: list[str]) -> None:
    said = forebay("tables", "plan", *words, "--steps", 100)
    assert said.code == 0, said.err
    assert "rows (auto)" in said.out and "317 GiB" in said.out and "replicate (auto)" in said.out


def test_job_without_tables_has_nothing_to_plan(forebay: Any, words: list[str]) -> None:
    said = forebay("tables", "plan", *words, "has_tables=false")
    assert said.code == 3 and "has no fb.Table" in said.err


def test_open_table_is_planned_by_the_ids_that_it_would_admit(forebay: Any, words: list[str]) -> None:
    said = forebay("tables", "plan", *words, "--workers", 2, "--steps", 100, "--json")
    *_, ad = json.loads(said.out)["2"]
    opened = ad["opened"]
    assert (opened["distinct"], opened["admitted"]) == (21, 20)
    assert opened["shared"] == 1 / 80
    sketch = 64 * 4 * 256
    assert ad["table_bytes"] == 20 * (4 * 4 + 4 + 16 + 64) + sketch
    (rows,) = ad["costs"]
    assert rows["memory_bytes"] == ad["table_bytes"] // 2
    assert rows["sent_bytes"] == ad["demand"]["unique"] * (16 + 2 * 16) / 2
    shown = forebay("tables", "plan", *words, "--steps", 100)
    assert "lookups without a row" in shown.out and "1 %" in shown.out
