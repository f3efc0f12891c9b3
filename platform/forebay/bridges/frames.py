"""Transforms of columns as they are, and by a function of pandas frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.transform.features.groups import Label
from forebay.data.transform.transform import Transform
from forebay.errors import WrongType
from forebay.runtime.extras import require_package


def plain_transform(manifest: Manifest) -> Transform:
    """Transform that makes one array of each column, with its type. Raises `WrongType` unless all are numbers."""
    types = {field.name: np.dtype(parse_type(field.type).to_pandas_dtype()) for field in manifest.fields}
    if others := sorted(name for name, dtype in types.items() if dtype.kind not in "biuf"):
        raise WrongType(
            f"the columns {others} hold no numbers. Name the others in schema_fields=, or give a "
            "transform=fb.Transform(...) that makes numbers of them.",
            columns=tuple(others),
        )
    features: dict[str, Any] = {name: Label(name, dtype=dtype.name) for name, dtype in types.items()}
    return Transform(**features)


def frame_transform(spec: Any) -> Transform:
    """Transform of a `TransformSpec` of petastorm: `func`, from frame to frame, and the fields that are kept."""
    require_package("pandas", "pandas", "transform_spec=")
    kept, removed = tuple(spec.selected_fields or ()), tuple(spec.removed_fields or ())
    return Transform(fn=partial(_arrays, spec.func, kept, removed))


def _arrays(
    func: Callable[[Any], Any] | None, kept: tuple[str, ...], removed: tuple[str, ...], rows: pa.RecordBatch
) -> dict[str, Any]:
    frame = rows.to_pandas()
    if func is not None:
        frame = func(frame)
    names = kept or [name for name in frame.columns if name not in removed]
    # Lists of equal length become rows of one array.
    return {
        name: np.stack(frame[name].to_list()) if frame[name].dtype == object else frame[name].to_numpy(copy=True)
        for name in names
    }
