"""The code of the page on sweeps makes valid sweeps. Running one is tested under Ray."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.tune.schedulers  # noqa: F401 - it sets a variable when it is imported

import forebay as fb
from forebay.sweep.setup import prepare

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    """The page's ```python blocks, without those marked ```python notest."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Names that the page's blocks define, beside the tutorial's job and data. `made` holds every sweep of them."""
    rng = np.random.default_rng(0)
    columns = {"age": rng.integers(18, 90, 400), "price": rng.random(400), "clicked": rng.integers(0, 2, 400)}
    words = {"country": rng.choice(["de", "fr"], 400), "device": rng.choice(["phone", "desk"], 400)}
    tags = [list(range(count)) for count in rng.integers(0, 5, 400)]
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table({**columns, **words, "tags": tags}), tmp_path / "clicks" / "a.parquet", row_group_size=100)
    (tmp_path / "my_job.py").write_text(blocks("tutorial.md")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_job", raising=False)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    made: list[fb.Sweep] = []
    for block in blocks("sweeps.md"):
        exec(compile(block, "sweeps.md", "exec"), vars(page))
        made += [each for each in vars(page).values() if isinstance(each, fb.Sweep) and each not in made]
    yield {**vars(page), "made": made}
    sys.modules.pop("my_job", None)


def test_every_sweep_of_the_page_could_run(names: dict[str, Any]) -> None:
    assert len(names["made"]) == 5
    for sweep in names["made"]:
        assert isinstance(prepare(sweep).job, fb.Job)
    made = names["sweep"](data="clicks", trials=3, deadline=90.0, name="ctr")
    assert (made.num_trials, made.deadline_s) == (3, 90.0)
    assert prepare(made).job.data.plan.manifest.num_rows < 400


def test_a_job_is_made_elastic(names: dict[str, Any]) -> None:
    made = fb.Sweep(names["elastic_job"], {"lr": (1e-3, 1e-1)}, "auc", "max", fixed={"data": "clicks", "workers": 3})
    job = prepare(made).job
    assert (job.min_workers, job.max_workers) == (1, 3)
