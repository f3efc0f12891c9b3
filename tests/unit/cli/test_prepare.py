"""`forebay prepare`, and preparations within `forebay run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PREPARED_JOB = '''
"""A job for tests that prepares its data first."""
from functools import partial
import pyarrow as pa
import torch
from torch import nn
import forebay as fb

def numbers(rows):
    for start in range(rows, 0, -50):
        rows = list(range(start - 50, start))
        yield pa.table({"row": rows, "x": [row / 100 for row in rows], "label": [row % 2 for row in rows]})

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, batch):
        return self.layer(batch["x"]).squeeze(1)

def train(worker):
    fb.fit(worker, Model(), partial(torch.optim.SGD, lr=0.01), nn.BCEWithLogitsLoss())

def job(storage: str, cache: str, rows: int = 200, name: str = "prepared") -> fb.Job:
    prepared = fb.prepare(numbers, rows=rows, into=f"{storage}/prepared", key="row", row_group_rows=32, inputs=[],
                          fit=fb.preparation.Moments("x"))
    transform = fb.Transform(x=fb.Dense(["x"]), label=fb.Label("label"))
    plan = fb.build_plan(prepared.manifest, lanes=4)
    return fb.Job(train=train, data=fb.Data(plan=plan, transform=transform, global_batch=20), epochs=1,
                  cache=fb.CacheSpec(path=cache, quota_bytes=1 << 26, min_free_bytes=0), storage=storage, name=name)
'''


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "prepared_job.py").write_text(PREPARED_JOB)
    return [str(tmp_path / "prepared_job.py"), f"storage={tmp_path / 'runs'}", f"cache={tmp_path / 'cache'}"]


def test_prepare_then_run_prepares_once(forebay: Callable[..., Any], words: list[str], tmp_path: Path) -> None:
    said = forebay("prepare", *words)
    assert said.code == 0
    assert "numbers: preparing into" in said.err and "numbers: prepared 200 rows in 2 files" in said.err
    assert "row groups  7" in said.out and "fitted      x" in said.out
    assert not (tmp_path / "runs" / "prepared" / "prepared").exists()
    said = forebay("run", "--driver", "local", *words, "--json")
    assert said.code == 0, said.err
    assert "numbers: reused" in said.err
    assert json.loads(said.out)["epochs"][0]["rows"] == 200
    said = forebay("prepare", *words, "--json")
    (found,) = json.loads(said.out)["prepared"]
    assert (found["rows"], found["row_groups"], found["sealed"]) == (200, 7, True)


def test_list_and_remove(forebay: Callable[..., Any], words: list[str], tmp_path: Path) -> None:
    into = tmp_path / "runs" / "prepared"
    # A long path is wrapped.
    assert f"nothingin{into}" in "".join(forebay("prepare", "ls", into).out.split())
    for rows in (200, 250):
        assert forebay("prepare", *words, f"rows={rows}").code == 0
    (into / "numbers-0123456789abcdef").mkdir()
    said = forebay("prepare", "ls", into)
    assert said.out.count("numbers-") == 3 and said.out.count("not sealed") == 1
    found = json.loads(forebay("prepare", "ls", into, "--json").out)["prepared"]
    assert sorted(each.get("rows", 0) for each in found) == [0, 200, 250]
    for each in found:
        assert forebay("prepare", "rm", each["folder"]).code == 0
    assert list(into.iterdir()) == []


def test_only_prepared_data_is_removed(forebay: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    said = forebay("prepare", "rm", tmp_path / "thesis")
    assert said.code == 3 and "is not a prepared dataset" in said.err
    assert (tmp_path / "thesis").is_dir()
    said = forebay("prepare", "rm", tmp_path / "x-0123456789abcdef")
    assert said.code == 3 and "does not exist" in said.err


def test_a_job_without_preparation(forebay: Callable[..., Any], job_words: Callable[..., list[str]]) -> None:
    said = forebay("prepare", *job_words())
    assert said.code == 0
    assert "nothing: this job calls neither fb.prepare nor fb.preparation.from_ray_data" in said.out


def test_errors_come_without_a_traceback(forebay: Callable[..., Any], words: list[str], tmp_path: Path) -> None:
    path = Path(words[0])
    path.write_text(path.read_text().replace("inputs=[],", ""))
    said = forebay("prepare", *words)
    assert said.code == 3
    assert said.err.startswith("InvalidOption: numbers has no known inputs")
