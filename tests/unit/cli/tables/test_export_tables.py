"""`forebay tables export` serves the trained rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD

import forebay as fb

ROWS, DIM = 150, 3


class Served(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = fb.Table(ROWS, DIM, padding_id=3)
        self.site = fb.Table(1000, DIM, admission=fb.tables.Admission(min_count=1))
        self.out = nn.Linear(DIM, 1)


def train(worker: fb.Worker, rows: str) -> None:
    model, optimizer = worker.setup(
        Served(), partial(SGD, lr=0.1), tables=fb.tables.RowWiseAdagrad(lr=0.5, weight_decay=0.1)
    )
    for batch in worker.loader():
        model.out(model.user(batch["user"]) + model.site(batch["user"] * -7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit()
    with torch.no_grad():
        ids = torch.arange(ROWS)
        model.eval()
        np.save(rows, np.stack([model.user(ids).numpy(), model.site(ids * -7).numpy()]))


@pytest.fixture
def run(tmp_path: Path, parquet_folder: Callable[..., Path]) -> np.ndarray:
    """Rows that the run 'ranker' has trained."""
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [40, 40]})), lanes=4)
    transform = fb.Transform(user=fb.Label("id", dtype="int64"))
    data = fb.Data(plan=plan, transform=transform, global_batch=16)
    storage, rows = str(tmp_path / "runs"), str(tmp_path / "rows.npy")
    fb.run(fb.Job(train=partial(train, rows=rows), data=data, storage=storage, name="ranker", cache=None), "local")
    return np.load(rows)


def test_tables_are_those_that_were_trained(forebay: Any, run: np.ndarray, tmp_path: Path) -> None:
    words = ["tables", "export", "ranker", "--to", tmp_path / "out", "--storage", tmp_path / "runs"]
    said = forebay(*words, "--json")
    assert said.code == 0, said.err
    made = json.loads(said.out)
    assert made["is_new"] and made["tables"][0]["name"] == "user" and made["tables"][0]["padding_id"] == 3
    assert run[0][2].any() and not run[0][3].any(), (
        "a padding id has a row of zeros, in training and where it is served"
    )
    mapped = np.load(tmp_path / "out" / "user.npy", mmap_mode="r")
    np.testing.assert_array_equal(mapped, run[0])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "user.ids.npy"), np.arange(ROWS))
    loaded = load_file(tmp_path / "out" / "user.safetensors")
    assert torch.equal(loaded["weight"], torch.from_numpy(run[0])) and torch.equal(loaded["ids"], torch.arange(ROWS))
    ids = np.load(tmp_path / "out" / "site.ids.npy")
    assert sorted(ids) == ids.tolist() and 0 in ids and len(ids) == 80
    site, shared = (np.load(tmp_path / "out" / f"site{kind}.npy", mmap_mode="r") for kind in ("", ".shared"))
    np.testing.assert_array_equal(site, run[1][-ids // 7])
    np.testing.assert_array_equal(shared[0], run[1][ROWS - 1])
    again = forebay(*words)
    assert again.code == 0 and "150" in again.out


def test_a_run_without_tables_is_refused(forebay: Any, tmp_path: Path) -> None:
    said = forebay("tables", "export", "none", "--to", tmp_path / "out", "--storage", tmp_path)
    assert said.code == 3 and "there is no run 'none'" in said.err
