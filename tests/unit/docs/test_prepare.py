"""The code of the page on preparation runs. What needs Ray is defined, and tested under Ray."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def names_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that runs a page's ```python blocks in a folder with clicks. Returns the names that they define."""
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 50, 1000), "row": np.arange(1000), "day": rng.integers(1, 90, 1000)}
    more = {"price": rng.random(1000), "country": rng.choice(["de", "fr"], 1000)}
    (tmp_path / "clicks").mkdir()
    pq.write_table(pa.table(columns | more), tmp_path / "clicks" / "a.parquet")
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> dict[str, Any]:
        code = "".join(re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), flags=re.DOTALL))
        # A file, because the fingerprint of a function needs its source.
        (tmp_path / "page.py").write_text(code)
        page = ModuleType("page")
        monkeypatch.setitem(__import__("sys").modules, "page", page)
        exec(compile(code, str(tmp_path / "page.py"), "exec"), vars(page))
        return vars(page)

    return run


def test_the_page_on_preparation(names_of: Any) -> None:
    names = names_of("prepare.md")
    assert names["prepared"].rows == names["plan"].manifest.num_rows
    assert names["prepared"].vocabularies["country"]
    assert 0.4 < names["usual"] < 0.6
    assert names["prepared"].statistics["per_day"].quantile(0.99) > 0
    assert len(names["pandas_plan"].manifest) == 16
    assert names["by_parts"].rows == 1000
