from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest

from forebay.runtime.installed import Package, package_of

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
