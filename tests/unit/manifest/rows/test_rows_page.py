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
    text, file, group, row, num_rows, skipped_rows = capsys.readouterr().out.split()
    assert text == f"{file}:{group}:{row}"
    x0 = pq.ParquetFile(f"clicks/{file}").read_row_group(int(group))["x0"][int(row)].as_py()
    assert (num_rows, skipped_rows) == ("148", "2")
    assert names["batch"]["x"][7, 0].item() == x0
