"""The code of the page on mixtures runs unchanged, from top to bottom."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn import functional

import forebay as fb

PAGE = Path(__file__).parents[3] / "docs" / "mixtures.md"


class PageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(batch["x"]).squeeze(1)


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for number, (name, rows) in enumerate({"web": 800, "code": 300, "books": 100}.items()):
        (tmp_path / name).mkdir()
        columns = {"x1": rng.random(rows), "x2": rng.random(rows), "importance": rng.random(rows)}
        table = pa.table(columns | {"clicked": (rng.random(rows) < 0.2 + number / 10).astype(np.int8)})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=50)
    given: dict[str, Any] = {name: str(tmp_path / name) for name in ("web", "code", "books")}
    return given | {"torch": torch, "F": functional, "Model": PageModel}


def test_the_page_runs(names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(block, names)
    assert names["later"].accepts(names["cursor"])
    assert names["balanced"].class_rows == {0: 400.0, 1: 400.0}
    for train in (names["train"], fit_model):
        job = fb.Job(
            train=train,
            data=names["data"],
            held_out=names["held_out"],
            cache=None,
            storage=str(tmp_path / train.__name__),
            name="page",
        )
        result = fb.run(job, driver="local", callbacks=[])
        assert {"loss", "loss/code", "loss/web"} <= set(result.metrics)
    assert {"auc", "auc/code", "auc/web"} <= set(result.metrics)


def fit_model(worker: fb.Worker) -> None:
    fb.fit(worker, PageModel(), partial(torch.optim.SGD, lr=0.1), nn.BCEWithLogitsLoss(), fb.evaluate_auc)
