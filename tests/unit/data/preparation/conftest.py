"""Small inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """Folder of three Parquet files: 1,000 rows of `row` (shuffled), `user` and `price`."""
    folder = tmp_path / "clicks"
    folder.mkdir()
    rng = np.random.default_rng(0)
    row = rng.permutation(1000)
    table = pa.table({"row": row, "user": [f"u{number % 17}" for number in row.tolist()], "price": row * 0.5})
    for number, start in enumerate((0, 300, 650)):
        pq.write_table(table.slice(start, (300, 350, 350)[number]), folder / f"c{number}.parquet")
    return folder


@pytest.fixture
def bytes_of() -> Callable[[str], dict[str, bytes]]:
    """Content of every data file in a folder, by name."""
    return lambda folder: {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.parquet"))}
