"""A manifest and a transform on their way to a process that may not be able to import the user's code."""

from __future__ import annotations

import cloudpickle

from forebay.errors import TransformFailed
from forebay.pickling import own_code_by_value
from forebay.transform.dataset import Dataset


def pack(dataset: Dataset) -> bytes:
    """Installed code travels as names, the user's own files as what they hold."""
    if dataset.transform.fn is None:
        return bytes(cloudpickle.dumps(dataset))
    with own_code_by_value():
        return bytes(cloudpickle.dumps(dataset))


def unpack(payload: bytes) -> Dataset:
    """What `pack` was given. Raises `TransformFailed` where this process lacks a package that the transform needs."""
    try:
        dataset: Dataset = cloudpickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise TransformFailed(
            f"The transform cannot be loaded by the cache of the node: {error}. Install there what it imports, or end "
            "the cache's actor if the package was installed after it started."
        ) from error
    return dataset
