from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from forebay.runtime import installed
from forebay.runtime.installed import Package, is_own, package_of

CACHES = (
    installed._content,
    installed._version,
    installed._distributions_by_module,
    installed._package_at,
    installed._place,
    installed._place_of,
)
PYTHON = Package("python", f"{sys.version_info.major}.{sys.version_info.minor}")


@pytest.mark.parametrize(
    "module", ["builtins", "math", "json", "json.decoder", "os.path", "collections.abc", "_io", "sys"]
)
def test_the_standard_library_has_the_version_of_python(module: str) -> None:
    assert package_of(module) == PYTHON


@pytest.mark.parametrize("module", ["numpy", "numpy.linalg", "numpy._core._multiarray_umath"])
def test_modules_of_an_installed_package_have_its_version(module: str) -> None:
    assert package_of(module) == Package("numpy", np.__version__)


def test_a_module_may_have_another_name_than_its_distribution() -> None:
    assert "sklearn" not in sys.modules or importlib.metadata.version("scikit-learn")
    assert package_of("_pytest") == Package("_pytest", f"pytest=={pytest.__version__}")


def test_what_is_own_has_no_package() -> None:
    names = ["__main__", "no_such_module", "json.no_such_module", *(name for name, each in sys.modules.items() if each)]
    assert [name for name in names if is_own(name) != (package_of(name) is None)] == []


def test_a_link_into_an_installed_package_belongs_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "linked_single.py").write_text("")
    (tmp_path / "linked_single.py").symlink_to(tmp_path / "site-packages" / "linked_single.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_own("linked_single") and package_of("linked_single") is not None


def test_the_version_does_not_depend_on_the_import_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "changed by hand")
    assert package_of("numpy") == Package("numpy", importlib.metadata.version("numpy"))


def test_own_modules_packages_and_namespaces_are_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_space").mkdir()
    (tmp_path / "own_space" / "inner.py").write_text("")
    (tmp_path / "own_single.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_single", "own_space", "own_space.inner"):
        assert package_of(name) is None
        importlib.import_module(name)
        assert package_of(name) is None
        monkeypatch.delitem(sys.modules, name)
    assert package_of("__main__") is None
    assert package_of("no_such_module_anywhere") is None


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Package]]:
    """`install(source, purely=..., url=..., record=...)` installs `own_wheel` 0.1.0 again, and finds its package."""
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))

    def again(source: str, *, purely: bool = True, url: bool = False, record: bool = True) -> Package:
        shutil.rmtree(folder, ignore_errors=True)
        metadata = folder / "own_wheel-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / "own_wheel.py").write_text(source)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own_wheel\nVersion: 0.1.0\n")
        (metadata / "WHEEL").write_text(f"Root-Is-Purelib: {str(purely).lower()}\n")
        if url:
            (metadata / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {}}')
        if record:
            told = hashlib.sha256(source.encode()).hexdigest()
            (metadata / "RECORD").write_text(f"own_wheel.py,sha256={told},9\n../../bin/own,sha256={id(source)},9\n")
        for cache in CACHES:
            cache.cache_clear()
        importlib.invalidate_caches()
        found = package_of("own_wheel")
        assert found is not None
        return found

    yield again
    for cache in CACHES:
        cache.cache_clear()


@pytest.mark.parametrize(
    "how", [{}, {"purely": False, "url": True}, {"record": False}], ids=["pure", "from a folder", "without a record"]
)
def test_an_own_package_that_was_installed_again_with_its_old_version_is_another(
    install: Callable[..., Package], how: dict[str, bool]
) -> None:
    first = install("K = 1", **how)
    told = first.content
    assert told is not None
    assert install("K = 1", **how).content == told
    second = install("K = 2", **how)
    assert second == first
    assert second.content != told


def test_a_compiled_release_counts_by_its_version(install: Callable[..., Package]) -> None:
    assert install("K = 1", purely=False).content is None
    assert package_of("json").content is None  # type: ignore[union-attr]
