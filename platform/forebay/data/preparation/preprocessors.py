"""Preprocessors of Ray Data, saved without pickle.

So serving applies what was fitted. Ray's own `serialize` writes pickles. Private names: `ray_cluster/private_names.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.data import preprocessors as known_preprocessors
from ray.data.preprocessor import SerializablePreprocessorBase
from ray.data.preprocessors.utils import StatComputationPlan
from ray.data.preprocessors.version_support import UnknownPreprocessorError, _lookup_class

from forebay.data.manifest.prepared import Prepared
from forebay.data.parquet.arrow_types import parse_type
from forebay.errors import InvalidOption
from forebay.ray_cluster.private_names import RAY_DATA, check_ray


def preprocessor_facts(name: str, preprocessor: object) -> dict[str, Any]:
    """Return a preprocessor as JSON values.

    Class, options and fitted values. Raises `InvalidOption` if it keeps other objects.
    """
    if not isinstance(preprocessor, SerializablePreprocessorBase):
        raise InvalidOption(
            f"preprocessor {name!r} is a {type(preprocessor).__name__}, which Forebay cannot save. Return fitted "
            "preprocessors of ray.data.preprocessors, such as StandardScaler(columns).fit(dataset)."
        )
    try:
        return {
            "class": preprocessor.get_preprocessor_class_id(),
            "version": preprocessor.get_version(),
            "fields": _to_plain(preprocessor._get_serializable_fields()),  # noqa: SLF001 - see above
            "stats": _to_plain(preprocessor._get_stats()),  # noqa: SLF001
            "ray": ray.__version__,
        }
    except TypeError as error:
        raise InvalidOption(
            f"preprocessor {name!r} keeps {error}, which cannot be saved as plain data. Leave it out of what the "
            "function returns, and save it yourself."
        ) from error


def load_preprocessor(prepared: Prepared, name: str) -> Any:
    """Load a fitted preprocessor of a prepared dataset.

    Apply it to data to serve. Raises `InvalidOption` if the function returned none of that name, or if this Ray has no
    such class.
    """
    check_ray(RAY_DATA)
    if name not in prepared.preprocessors:
        raise InvalidOption(
            f"{prepared.folder} holds no preprocessor {name!r}, but {sorted(prepared.preprocessors)}. The function "
            'returns them beside the dataset: `return dataset, {"scaler": scaler}`.'
        )
    facts = prepared.preprocessors[name]
    assert known_preprocessors  # importing it registers the classes
    try:
        kind = _lookup_class(facts["class"])
    except UnknownPreprocessorError as error:
        raise InvalidOption(
            f"preprocessor {name!r} is a {facts['class']} of Ray {facts['ray']}, which Ray {ray.__version__} does not "
            "know. Prepare the data again with this Ray."
        ) from error
    made = kind.__new__(kind)
    made._stat_computation_plan = StatComputationPlan()  # noqa: SLF001 - as `deserialize` of Ray does
    made._set_serializable_fields(_from_plain(facts["fields"]), facts["version"])  # noqa: SLF001
    made._set_stats(_from_plain(facts["stats"]))  # noqa: SLF001
    return made


def _to_plain(value: Any) -> Any:
    """Convert a value to JSON.

    Objects name the types that JSON does not have.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {"dict": [[_to_plain(key), _to_plain(each)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        items = [_to_plain(each) for each in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {"numpy": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        return {"arrow": _to_plain(value.to_pylist()), "type": str(value.type)}
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__}")


def _from_plain(value: Any) -> Any:
    match value:
        case {"dict": pairs}:
            return {_from_plain(key): _from_plain(each) for key, each in pairs}
        case {"float": text}:
            return float(text)
        case {"tuple": items}:
            return tuple(map(_from_plain, items))
        case {"numpy": items, "dtype": dtype}:
            return np.array(items, dtype)
        case {"arrow": items, "type": kind}:
            return pa.array(_from_plain(items), parse_type(kind))
    return [_from_plain(each) for each in value] if isinstance(value, list) else value
