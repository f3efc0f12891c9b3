"""Pickled dataset for a process that may be unable to import the user's code."""

from __future__ import annotations

import cloudpickle

from forebay.data.transform.dataset import Dataset
from forebay.errors import TransformFailed
from forebay.runtime.pickling import own_code_by_value


def pack(dataset: Dataset) -> bytes:
    """Pickle installed code by name and the user's own files by value."""
    if dataset.transform.fn is None:
        return bytes(cloudpickle.dumps(dataset))
    with own_code_by_value():
        return bytes(cloudpickle.dumps(dataset))


def unpack(payload: bytes) -> Dataset:
    """Unpickle the dataset. Raises `TransformFailed` if this process lacks a package that the transform needs."""
    try:
        dataset: Dataset = cloudpickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise TransformFailed(
            f"The transform cannot be loaded by the cache of the node: {error}. Install its imports there, or end "
            "the cache's actor if the package was installed after it started."
        ) from error
    return dataset
