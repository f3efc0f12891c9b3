"""The tutorial's code runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.cli.app import main
from forebay.training.runs.result import load_result

DOCS = Path(__file__).parents[3] / "docs"


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), flags=re.DOTALL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = 2_000
    table = pa.table(
        {
            "age": rng.integers(18, 90, rows),
            "price": rng.random(rows),
            "country": rng.choice(["de", "fr", "jp"], rows),
            "device": rng.choice(["phone", "desk"], rows),
            "tags": [list(range(count)) for count in rng.integers(0, 5, rows)],
            "clicked": rng.integers(0, 2, rows).astype(np.int8),
        }
    )
    (tmp_path / "clicks").mkdir()
    pq.write_table(table, tmp_path / "clicks" / "a.parquet", row_group_size=100)
    return tmp_path / "clicks"


def run(job: Path, *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--driver", "local", str(job), "workers=1", *words])
    assert not ended.value.code


@pytest.mark.parametrize("loop", ["fit", "own"])
def test_the_job_runs_and_goes_on_by_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the job keeps the default place of the cache
    job, own, _ = code_blocks()
    text = job if loop == "fit" else job.replace("class Model", own + "\n\nclass Model")
    Path("my_job.py").write_text(text)
    run(Path("my_job.py"), f"data={data}", "epochs=1", "name=mine")
    run(Path("my_job.py"), f"data={data}", "epochs=2", "name=mine")
    result = load_result(str(tmp_path / "runs" / "mine"))
    assert result is not None
    assert [epoch.epoch for epoch in result.epochs] == [0, 1]
    assert all(epoch.rows == 1_800 for epoch in result.epochs)
    assert ("auc" in result.metrics) == (loop == "fit")


def test_the_function_makes_a_transform(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tutorial_features.py").write_text("import forebay as fb\n" + code_blocks()[2])
    import tutorial_features

    block = tutorial_features.transform.apply(pq.read_table(data))
    assert set(block.arrays) == {"x", "label"}
    assert block.rows == 2_000
