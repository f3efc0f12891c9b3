"""The README: its code runs as it stands, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.training.job.recipe import call_recipe, load_recipe

README = (Path(__file__).parents[4] / "README.md").read_text()


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder `clicks` of 20,000 rows, below the working directory."""
    random = np.random.default_rng(0)
    columns = {name: pa.array(random.random(20_000), pa.float32()) for name in ("age", "price")}
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table({**columns, "clicked": random.integers(0, 2, 20_000)}), tmp_path / "clicks" / "0.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "clicks"


def code(title: str) -> str:
    """First block of Python below a title."""
    found = re.search(rf"^## {title}$.*?^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found.group(1)


def test_first_batch_runs_as_it_stands(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clicks.is_dir()
    exec(code("First batch"), {})
    assert capsys.readouterr().out.splitlines()[-1].startswith("torch.Size([")


def test_job_runs_as_it_stands(clicks: Path) -> None:
    clicks.with_name("my_job.py").write_text(code("A job"))
    job = call_recipe(load_recipe("my_job.py"), {"data": "clicks"})
    assert fb.run(job, "local").is_finished


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 110
