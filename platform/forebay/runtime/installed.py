"""Modules of installed packages, and the user's own code.

Packages are known by version, own code by source.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution and its version.

    `python` is the standard library. The version is None if it is unknown.
    """

    name: str
    version: str | None

    @property
    def content(self) -> str | None:
        """Digest of the installed files, where a version is not enough.

        That is pure Python, and whatever came from a folder, a file or a repository: an own package is often installed
        again with an unchanged version. None for Python, and for a compiled package of an index, whose files differ by
        platform.
        """
        return None if self.name == "python" else _content(self.name)


def package_of(module: str) -> Package | None:
    """Package that `module` belongs to.

    None for the user's own code, including editable installs.
    """
    if module == "__main__":
        return None
    top = module.partition(".")[0]
    return _package_at(top, _location(module) or _location(top))


def is_own(module: str) -> bool:
    """Whether `package_of` gives None, without looking for versions.

    Of 1,700 modules, versions and places of all files took 0.36 s with the GIL held.
    """
    if module == "__main__":
        return True
    top = module.partition(".")[0]
    path = _location(module) or _location(top)
    return top not in sys.stdlib_module_names if path is None else _place(path) is None


@functools.cache
def _package_at(top: str, path: str | None) -> Package | None:
    if path is None:
        # Built in or frozen: it has no file.
        return _python() if top in sys.stdlib_module_names else None
    place = _place(path)
    if place == "package":
        return Package(top, _version(top))
    return _python() if place == "python" else None


@functools.cache
def _place(path: str) -> Literal["package", "python"] | None:
    """Owner of a path. None for the user's own."""
    file = Path(path)
    is_in_folder = file.suffix in (".py", ".so") and not file.is_symlink()
    return _place_of(file.parent if is_in_folder else file)


@functools.cache
def _place_of(path: Path) -> Literal["package", "python"] | None:
    location = path.resolve()  # once for all files of a folder
    if _INSTALLED.intersection(location.parts):
        return "package"
    return "python" if any(location.is_relative_to(each) for each in _standard_library()) else None


@functools.cache
def _standard_library() -> tuple[Path, ...]:
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def _python() -> Package:
    # Bytecode and standard library change with the minor version, not with a patch.
    return Package("python", ".".join(platform.python_version_tuple()[:2]))


def _location(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is None and "." in module:
        return None
    spec = getattr(loaded, "__spec__", None) if loaded else importlib.util.find_spec(module)
    paths = [getattr(loaded, "__file__", None), *((spec.submodule_search_locations or ()) if spec else ())]
    if spec is not None and spec.has_location:
        paths.append(spec.origin)
    return next((path for path in paths if path), None)


@functools.cache
def _version(top: str) -> str | None:
    # Installed metadata before `__version__`, because it does not depend on whether the module has been imported yet.
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = _distributions_of(top)
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in names]
    told = getattr(sys.modules.get(top), "__version__", None)
    return ",".join(versions) or (told if isinstance(told, str) else None)


def _distributions_of(top: str) -> list[str]:
    return sorted(set(_distributions_by_module().get(top, ())))


@functools.cache
def _distributions_by_module() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()  # takes 0.3 s where 500 are installed


@functools.cache
def _content(top: str) -> str | None:
    names = _distributions_of(top) if _distribution(top) is None else [top]
    found = [each for name in names if (each := _distribution(name)) is not None]
    parts = [_installed_content(each, top) for each in found] or [_source_content(top)]
    told = [part for part in parts if part is not None]
    return hashlib.sha256("\n".join(told).encode()).hexdigest() if told else None


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed_content(distribution: importlib.metadata.Distribution, top: str) -> str | None:
    """Files of a distribution and their digests, by its installer's record."""
    record = distribution.read_text("RECORD")
    if not record:
        return _source_content(top)
    is_released = distribution.read_text("direct_url.json") is None
    if is_released and "Root-Is-Purelib: true" not in (distribution.read_text("WHEEL") or ""):
        return None
    # Scripts hold the path of an interpreter, metadata the path of an installer.
    lines = (line for line in record.splitlines() if ",sha" in line)
    return "\n".join(sorted(line for line in lines if ".dist-info/" not in line and not line.startswith("..")))


def _source_content(top: str) -> str | None:
    """Digest of the Python files of a package without a record."""
    path = _location(top)
    if path is None:
        return None
    location = Path(path).resolve()
    folder = location.parent if location.name.startswith("__init__.") else location
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    told = (f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)
    return "\n".join(told)
