"""Imports at first use, by name.

For public names, and for methods whose body lies on a higher floor.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Return `__getattr__` and `__all__` of a lazy package.

    It imports its public names on first use.

    `homes` has the module of each name. A name that ends in `:` there is the module itself.
    """

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            # With the module, Python adds the name that is meant to the traceback.
            module = sys.modules[package]
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        try:
            module = importlib.import_module(home.removesuffix(":"))
        except ImportError as error:
            from forebay.runtime.extras import missing_package  # noqa: PLC0415 - slow, and only for what is missing

            if missing := missing_package(error, f"{package.replace('forebay', 'fb', 1)}.{name}"):
                raise missing from error
            raise
        value = module if home.endswith(":") else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(homes)


def is_installed(package: str) -> bool:
    """Whether a package is there, without its import."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


@cache
def late(name: str) -> Callable[..., Any]:
    """Import `module:function` when a method is called.

    For methods that users expect on a value.

    A manifest is pure data, and filters, files and plots are made of it: the import would be an arrow that runs up.
    """
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
