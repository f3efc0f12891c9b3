from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.data.preparation import external_sort
from forebay.data.preparation.external_sort import sorted_tables
from forebay.errors import InvalidOption


def tables_of(rng: np.random.Generator, layout: str, rows: int) -> list[pa.Table]:
    users = rng.integers(0, rows // 7 + 1, rows)
    if layout == "sorted":
        users.sort()
    elif layout == "reversed":
        users = np.sort(users)[::-1].copy()
    elif layout == "equal":
        users[:] = 3
    names = pa.array([None if user % 11 == 0 else f"u{user}" for user in users.tolist()])
    whole = pa.table({"user": users, "name": names, "row": np.arange(rows)})
    cuts = np.sort(rng.integers(0, rows + 1, 6)).tolist()
    return [whole.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)]


@pytest.mark.parametrize("layout", ["random", "sorted", "reversed", "equal"])
@pytest.mark.parametrize("key", [("user",), ("name", "user")])
@pytest.mark.parametrize("run_bytes", [1, 20_000, 1 << 30])
def test_rows_are_those_of_a_stable_sort(tmp_path: Path, layout: str, key: tuple[str, ...], run_bytes: int) -> None:
    given = tables_of(np.random.default_rng(len(layout)), layout, 5000)
    found = pa.concat_tables(sorted_tables(iter(given), key, tmp_path, run_bytes)).to_pandas()
    expected = pa.concat_tables(given).to_pandas().sort_values(list(key), kind="stable", na_position="last")
    assert found.equals(expected.reset_index(drop=True))


def test_runs_are_merged_in_tables_that_are_small(tmp_path: Path) -> None:
    given = tables_of(np.random.default_rng(1), "random", 200_000)
    few = [pa.concat_tables(given).slice(start, 10_000) for start in range(0, 200_000, 10_000)]
    merged = list(sorted_tables(iter(few), ["user"], tmp_path, few[0].nbytes // 2))
    assert len(list(tmp_path.iterdir())) == 20
    assert sum(table.num_rows for table in merged) == 200_000
    assert max(table.nbytes for table in merged) < 3 * few[0].nbytes


def test_runs_beyond_a_limit_are_open_for_a_load_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "_OPEN_RUNS", 3)
    given = tables_of(np.random.default_rng(1), "random", 200_000)
    few = [pa.concat_tables(given).slice(start, 10_000) for start in range(0, 200_000, 10_000)]
    rows = 0
    for table in sorted_tables(iter(few), ["user"], tmp_path, few[0].nbytes // 2):
        rows += table.num_rows
        open_files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        assert sum(path.startswith(str(tmp_path)) for path in open_files) <= 3
    assert rows == 200_000


def test_a_key_that_cannot_be_sorted(tmp_path: Path) -> None:
    table = pa.table({"user": [1], "tags": [["a"]]})
    with pytest.raises(InvalidOption, match=r"have columns \['user', 'tags'\], not one 'usr'"):
        list(sorted_tables([table], ["usr"], tmp_path))
    with pytest.raises(InvalidOption, match="cannot be sorted"):
        list(sorted_tables([table], ["tags"], tmp_path))
