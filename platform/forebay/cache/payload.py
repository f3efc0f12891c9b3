"""A manifest and a transform on their way to a process that may not be able to import the user's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cloudpickle

from forebay.errors import TransformFailed
from forebay.manifest.manifest import Manifest
from forebay.transform.packages import package_of
from forebay.transform.transform import Transform


def pack(manifest: Manifest, transform: Transform) -> bytes:
    """Installed code travels as names, the user's own files as what they hold."""
    if transform.fn is None:
        return bytes(cloudpickle.dumps((manifest, transform)))
    with own_code_by_value():
        return bytes(cloudpickle.dumps((manifest, transform)))


def unpack(payload: bytes) -> tuple[Manifest, Transform]:
    """What `pack` was given. Raises `TransformFailed` where this process lacks a package that the transform needs."""
    try:
        manifest, transform = cloudpickle.loads(payload)
    except (ImportError, AttributeError) as error:
        raise TransformFailed(
            f"The transform cannot be loaded by the cache of the node: {error}. Install there what it imports, or end "
            "the cache's actor if the package was installed after it started."
        ) from error
    return manifest, transform


@contextmanager
def own_code_by_value() -> Iterator[None]:
    """Pickle the user's own modules (a job loaded by path, a notebook's neighbours, a test) as what they hold.

    Modules of Python, of installed packages and of Forebay stay names; cloudpickle takes `__main__` by value anyway.
    """
    already = cloudpickle.list_registry_pickle_by_value()
    own = [
        module
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None)
        and getattr(module, "__name__", None) == name
        and name.partition(".")[0] not in ("__main__", "forebay")
        and name not in already
        and package_of(name) is None
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
