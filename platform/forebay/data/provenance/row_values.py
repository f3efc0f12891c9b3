"""Values of single rows, read from their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.reading import RowGroupReader


def row_values(
    manifests: Sequence[Manifest],
    block: NDArray[np.int64],
    row: NDArray[np.int64],
    columns: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Values by column of rows `row` of the row groups `block`, which are numbered over all manifests.

    Reads each row group once, as a whole. `columns` None is for those of each manifest. Raises as `RowGroupReader`.
    """
    ends = np.cumsum([len(manifest) for manifest in manifests])
    found: list[dict[str, Any]] = [{} for _ in block]
    readers = [RowGroupReader(manifest) for manifest in manifests]
    for each in np.unique(block).tolist():
        number = int(np.searchsorted(ends, each, side="right"))
        reader = readers[number]
        places = np.flatnonzero(block == each)
        table = reader.decode(reader.fetch(each - int(ends[number]) + len(manifests[number]), columns))
        values = table.take(pa.array(row[places])).to_pylist()
        for place, value in zip(places.tolist(), values, strict=True):
            found[place] = value
    return found
