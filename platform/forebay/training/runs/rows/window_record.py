"""Index of the windows of a run, saved in its folder: O(runs) numbers, from which every window is located again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.windows.index import TargetBounds, WindowIndex
from forebay.data.windows.line import StepLine
from forebay.data.windows.shape import WindowShape
from forebay.errors import InvalidOption
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve
from forebay.storage.small_files import read_small

_LINE = ("block", "first", "starts", "segments", "entities")
_BOUNDS = ("low", "high")
_METADATA = b"forebay"


def save_index(index: WindowIndex, uri: str) -> None:
    """Write `index` as a Parquet file of one row, whose columns are lists. Raises `OSError`."""
    arrays = {name: getattr(index.line, name) for name in _LINE} | {
        name: getattr(index.bounds, name) for name in _BOUNDS
    }
    facts: dict[str, Any] = {
        "shape": asdict(index.shape),
        "own_context": index.bounds.own_context,
        "num_blocks": len(index.rows),
        "data_id": index.data_id,
    }
    lists = [pa.LargeListArray.from_arrays([0, len(array)], pa.array(array)) for array in arrays.values()]
    table = pa.Table.from_arrays(lists, names=list(arrays)).replace_schema_metadata({_METADATA: json.dumps(facts)})
    sink = pa.BufferOutputStream()
    # Most numbers ascend: their differences are small.
    encodings = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in arrays}
    pq.write_table(table, sink, use_dictionary=False, column_encoding=encodings, compression="zstd")
    write_atomically(uri, sink.getvalue().to_pybytes())


def load_index(uri: str) -> WindowIndex:
    """Index that `save_index` wrote. Raises `InvalidOption` for a file that is missing or damaged."""
    place = resolve(uri)
    try:
        table = pq.read_table(pa.BufferReader(read_small(place)))
        arrays = {name: np.array(table[name].chunk(0).values, dtype=np.int64) for name in (*_LINE, *_BOUNDS)}
        facts = json.loads(table.schema.metadata[_METADATA])
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise InvalidOption(
            f"The index of windows {place.uri} cannot be read ({error}). Give the folder of the run with all files "
            "that the run has written there.",
            path=place.uri,
        ) from error
    shape = facts["shape"] | {"ahead": tuple(facts["shape"]["ahead"])}
    bounds = TargetBounds(**{name: arrays[name] for name in _BOUNDS}, own_context=facts["own_context"])
    return WindowIndex(
        StepLine(**{name: arrays[name] for name in _LINE}),
        WindowShape(**shape),
        bounds,
        num_blocks=facts["num_blocks"],
        data_id=facts["data_id"],
    )
