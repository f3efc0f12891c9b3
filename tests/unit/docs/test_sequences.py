"""The code of the page on sequences runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "sequences.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    times = pd.date_range("2020-01-01", periods=24 * 28, freq="h")
    (tmp_path / "meters").mkdir()
    for meter in range(3):
        columns = {"load": rng.random(len(times)), "temp": rng.random(len(times)), "hour": times.hour}
        frame = pd.DataFrame({"meter": f"m{meter}", "ts": times, "region": f"r{meter % 2}"} | columns)
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / "meters" / f"{meter}.parquet", row_group_size=100)
    (tmp_path / "tokens").mkdir()
    pq.write_table(pa.table({"token": rng.integers(0, 99, 5000)}), tmp_path / "tokens" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 4
    assert (names["inputs"].shape, names["targets"].shape) == ((8, 64), (8, 64))
    assert names["train"].num_windows == 3 * (14 * 24 - 59)
