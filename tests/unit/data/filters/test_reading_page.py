"""The code of the page on reading runs as it stands."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[4] / "docs" / "reading.md"


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    columns = {
        "label": [None, 0, 1, 1],
        "day": [datetime.date(2024, 1, 31)] * 3 + [datetime.date(2024, 1, 30)],
        "site": [1, 2, 3, 1],
    }
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "clicks" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "clicks"


@pytest.mark.usefixtures("clicks")
def test_the_code_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, "reading.md", "exec"), names)
    assert capsys.readouterr().out == "1 3\n3 1\n"
