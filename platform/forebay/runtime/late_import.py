"""Imports at first use, by name.

For public names, which refuse unknown keywords with a hint, and for methods whose body lies on a higher floor.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from forebay.errors import InvalidOption

_PLAIN = "__forebay_plain__"


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Return `__getattr__` and `__all__` of a lazy package.

    It imports its public names on first use.

    `homes` has the module of each name. A name that ends in `:` there is the module itself.
    """
    # `fb.monitors` lies in `forebay.training.monitors`.
    public = re.sub(r"^forebay(\.data|\.training)?", "fb", package)

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            hint = ""
            if package == "forebay" and not name.startswith("_"):  # Python and notebooks look for such names
                from forebay.runtime.unknown_names import name_hint  # noqa: PLC0415 - for errors only

                hint = name_hint(name, homes)
            # With the module, Python adds the name that is meant to the traceback.
            module = sys.modules[package]
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name, obj=module)
        try:
            module = importlib.import_module(home.removesuffix(":"))
        except ImportError as error:
            from forebay.runtime.extras import missing_package  # noqa: PLC0415 - slow, and only for what is missing

            if missing := missing_package(error, f"{public}.{name}"):
                raise missing from error
            raise
        value = module if home.endswith(":") else with_keyword_hints(getattr(module, name), f"{public}.{name}", package)
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(homes)


def with_keyword_hints(value: Any, name: str, package: str) -> Any:
    """Return a public function or class that refuses unknown keywords with a hint.

    A class stays the same object, with another `__init__`. A function gets a wrapper that pickles by its name in
    `package`. `name` is what users write, such as `fb.Job`.
    """
    if isinstance(value, type):
        init = vars(value).get("__init__")
        if _refuses_keywords(init) and not hasattr(init, "__wrapped__"):
            value.__init__ = _hinting(init, name)  # type: ignore[misc]
        return value
    if not _refuses_keywords(value):
        return value
    call = _hinting(value, name)
    call.__module__ = package
    return call


def _refuses_keywords(function: object) -> bool:
    return inspect.isfunction(function) and not function.__code__.co_flags & inspect.CO_VARKEYWORDS


def _hinting(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            known = inspect.signature(function).parameters
            unknown = next((each for each in keywords if each not in known), None)
            if unknown is None:
                raise
        from forebay.runtime.unknown_names import keyword_hint  # noqa: PLC0415 - for errors only

        raise InvalidOption(f"{name} has no argument {unknown}=.{keyword_hint(unknown, known)}", argument=unknown)

    vars(call)[_PLAIN] = function
    return call


def plain(value: Any) -> Any:
    """Return a public function as it was written, and any other value as it is."""
    return vars(value).get(_PLAIN, value) if inspect.isfunction(value) else value


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
