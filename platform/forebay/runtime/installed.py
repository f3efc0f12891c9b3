"""Modules of installed packages, and the user's own code.

Packages are known by version, own code by source.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution and its version.

    `python` is the standard library. The version is None if it is unknown.
    """

    name: str
    version: str | None


def package_of(module: str) -> Package | None:
    """Package that `module` belongs to.

    None for the user's own code, including editable installs.
    """
    if module == "__main__":
        return None
    top = module.partition(".")[0]
    location = _location(module) or _location(top)
    if location is None:
        # Built in or frozen: it has no file.
        return _python() if top in sys.stdlib_module_names else None
    if _INSTALLED.intersection(location.parts):
        return Package(top, _version(top))
    return _python() if any(location.is_relative_to(path) for path in _standard_library()) else None


@functools.cache
def _standard_library() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def _python() -> Package:
    # Bytecode and standard library change with the minor version, not with a patch.
    return Package("python", ".".join(platform.python_version_tuple()[:2]))


def _location(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    if loaded is None and "." in module:
        return None
    spec = getattr(loaded, "__spec__", None) if loaded else importlib.util.find_spec(module)
    paths = [getattr(loaded, "__file__", None), *((spec.submodule_search_locations or ()) if spec else ())]
    if spec is not None and spec.has_location:
        paths.append(spec.origin)
    return next((Path(path).resolve() for path in paths if path), None)


@functools.cache
def _version(top: str) -> str | None:
    # Installed metadata before `__version__`, because it does not depend on whether the module has been imported yet.
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = sorted(set(importlib.metadata.packages_distributions().get(top, [])))
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    told = getattr(sys.modules.get(top), "__version__", None)
    return ",".join(versions) or (told if isinstance(told, str) else None)
