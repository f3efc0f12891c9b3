"""The code of the pages on callbacks and on monitors runs as it stands, and steers a real run."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorboardX  # noqa: F401 - it sets a variable when it is imported
import torch
from torch import nn

import forebay as fb
from forebay.events import Event, Warned

DOCS = Path(__file__).parents[3] / "docs"


def code_of(page: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Names that the page's blocks define, one after another. Blocks marked ```python notest are left out."""
    monkeypatch.chdir(folder)
    module = ModuleType("page")  # a dataclass looks up the module it is defined in
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


class DocsModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, batch: fb.Batch) -> torch.Tensor:
        return self.last(self.table(batch["id"])).squeeze(1)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    (tmp_path / "rows").mkdir()
    ids = np.arange(400) % 10
    table = pa.table({"id": ids, "label": (ids % 2).astype(np.int8)})
    pq.write_table(table, tmp_path / "rows" / "a.parquet", row_group_size=100)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), label=fb.Label("label"))
    plan = fb.build_plan(fb.scan(str(tmp_path / "rows")), lanes=4)

    def make(**options: Any) -> fb.Job:
        return fb.Job(
            train=partial(train, rate=0.05),
            data=fb.Data(plan=plan, transform=transform, global_batch=40),
            epochs=20,
            storage=str(tmp_path / "runs"),
            checkpoint_every=5,
            **options,
        )

    return make


def train(worker: fb.Worker, rate: float) -> None:
    fb.fit(worker, DocsModel(), partial(torch.optim.Adam, lr=rate), nn.BCEWithLogitsLoss())


def test_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, caplog: pytest.LogCaptureFixture) -> None:
    names = code_of("callbacks.md", monkeypatch, tmp_path)
    callbacks = [*names["CALLBACKS"], names["board"]]
    result = fb.run(job(), driver="local", callbacks=callbacks)
    assert result.stopped is not None and result.stopped.startswith("loss 0.0")
    assert 1 < result.epochs_done < 20
    assert "tell_a_server raised and is not called again" in caplog.text
    assert any((tmp_path / "tensorboard" / "mine").iterdir())


def test_monitors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any) -> None:
    names = code_of("monitors.md", monkeypatch, tmp_path)
    heard: list[Event] = []
    monitors = (*names["MONITORS"], names["LeastLoss"](0.1))
    result = fb.run(job(monitors=monitors), driver="local", callbacks=[lambda event, control: heard.append(event)])
    assert result.stopped is not None and "is below 0.1" in result.stopped
    assert not [event for event in heard if isinstance(event, Warned)]
    assert any("embedding_norms/table.weight/max_norm" in step.metrics for step in result.steps)
