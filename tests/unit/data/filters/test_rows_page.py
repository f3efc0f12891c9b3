"""The code of the page on rows runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[4] / "docs" / "rows.md"


def test_the_code_of_the_page(
    parquet_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(parquet_folder({"day=1/a.parquet": [90, 60]}, folder="clicks").parent)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, "rows.md", "exec"), names)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (text, file, group, row), *spans, (num_rows, skipped_rows) = lines
    assert spans and all(
        span == (f"{at}:{number}:{low}" if low == high else f"{at}:{number}:{low}..{high}")
        for span, at, number, low, high in spans
    )
    assert text == f"{file}:{group}:{row}"
    x0 = pq.ParquetFile(f"clicks/{file}").read_row_group(int(group))["x0"][int(row)].as_py()
    assert (num_rows, skipped_rows) == ("148", "2")
    assert names["batch"]["x"][7, 0].item() == x0
