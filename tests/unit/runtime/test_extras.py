"""Packages of extras and their least versions.

The versions are in pyproject.toml. Errors have the pip line for what is missing or too old.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import forebay as fb
from forebay.errors import MissingPackage
from forebay.runtime import extras
from forebay.runtime.extras import PACKAGES, extra_package, missing_package, require_package, validate_extra

ROOT = Path(__file__).parents[3]
MODULES = {"PIL": "pillow", "faiss": "faiss-cpu", "google": "google-auth", "hdfs_native": "hdfs-native"}
MODULES |= {"mlflow": "mlflow-skinny", "botocore": "boto3", "liger_kernel": "liger-kernel"}
# Files that import a package after another function has checked it, and the name of that function.
CHECKED_BEFORE = {
    "data/sources/iceberg.py": "_open",
    "fleet/kube/connection.py": "_config",
    "llm/attention.py": "import_transformers",
    "llm/chat/template.py": "import_transformers",
    "llm/cost/skeleton.py": "import_transformers",
    "llm/experts.py": "import_transformers, require_bitsandbytes",
    "llm/hf_folder/base_names.py": "import_transformers",
    "llm/adapters.py": "peft_config",
    "llm/loss.py": "require_package",
    "llm/quantization.py": "import_transformers, require_bitsandbytes",
    "training/strategies/zero/engine.py": "require_package",
    "storage/hadoop/native.py": "_TrackedClient",
    "storage/exclusive.py": "_put_s3, _post_gcs",
}


def requirements() -> dict[str, tuple[str, str]]:
    """Extra and least version of each package in pyproject.toml.

    Without those for packages that Forebay imports nowhere.
    """
    found: dict[str, tuple[str, str]] = {}
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, lines in optional.items():
        for line in lines if extra not in ("test", "docs", "notebook") else ():
            needed = Requirement(line)
            if needed.name != "forebay":
                (minimum,) = (each.version for each in needed.specifier if each.operator in (">=", "=="))
                assert found.setdefault(needed.name, (extra, minimum)) == (extra, minimum)
    return found


def install(folder: Path, package: str, version: str) -> None:
    """Metadata of an installed package, as pip writes them."""
    info = folder / f"{re.sub('[-.]', '_', package)}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def test_the_table_is_that_of_pyproject() -> None:
    assert {name: (needed.extra, needed.minimum) for name, needed in PACKAGES.items()} == requirements()


def test_the_tests_run_with_the_least_versions_or_newer() -> None:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in optional["test"]:
        needed = Requirement(line)
        if needed.name in PACKAGES:
            minimum = PACKAGES[needed.name].minimum
            assert [each.version for each in needed.specifier if each.operator == ">="] == [minimum], line


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_version_that_is_too_old_is_named_with_the_line_that_installs_another(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, package, "0.0.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    needed = PACKAGES[package]
    text = rf"^it needs the package {package} from version {needed.minimum} on, and 0\.0\.1 is installed\. Run: "
    with pytest.raises(MissingPackage, match=text) as raised, extra_package(package, "it"):
        pytest.fail("an old package is not imported")
    line = str(raised.value).partition("Run: ")[2]
    assert line == (needed.install or f"pip install --upgrade 'forebay[{needed.extra}]'")
    assert (raised.value.package, raised.value.found, raised.value.minimum) == (package, "0.0.1", needed.minimum)
    with pytest.raises(MissingPackage, match=text):
        validate_extra(needed.extra, "it")


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [
        ("1.6", True),
        ("1.6.0", True),
        ("1.6.1rc1", True),
        ("2+cpu", True),
        ("1.10", True),
        ("1.5.9", False),
        ("1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(
    version: str, is_enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "deltalake", version)
    monkeypatch.syspath_prepend(str(tmp_path))
    if is_enough:
        extras.validate_version("deltalake", "it")
    else:
        with pytest.raises(MissingPackage):
            extras.validate_version("deltalake", "it")


def test_another_package_may_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    install(tmp_path, "mlflow", "2.9")
    with pytest.raises(MissingPackage, match="from version 3 on, and 2.9 is installed"):
        extras.validate_version("mlflow-skinny", "it")


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    text = r"^it needs the package wandb \(.*\)\. Run: pip install 'forebay\[wandb\]'$"
    with pytest.raises(MissingPackage, match=text), extra_package("wandb", "it"):
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
    with pytest.raises(MissingPackage, match=r"deepspeed, which is not installed\. Run: pip install --no-build-isol"):
        require_package("deepspeed", "no_such_module_anywhere", "it")
    other = "pip install another"
    with pytest.raises(MissingPackage, match=f"Run: {other}$"), extra_package("pandas", "it", other):
        raise ImportError("cannot import name 'frame'")


def test_errors_of_imports_are_those_of_extras_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_package(ModuleNotFoundError("no", name=f"{fb.__name__}.nothing"), "it") is None
    assert missing_package(ModuleNotFoundError("no"), "it") is None
    found = missing_package(ModuleNotFoundError("no", name="ray"), "it")
    assert str(found) == "it needs the package ray, which is not installed. Run: pip install 'forebay[ray]'"
    moved = ImportError("cannot import name 'x' from 'ray.train'", name="ray.train")
    assert "it uses ray.train.x, which the installed Ray" in str(missing_package(moved, "it"))
    moved_elsewhere = ImportError("cannot import name 'x' from 'pandas.io'", name="pandas.io")
    assert missing_package(moved_elsewhere, "it") is None
    install(tmp_path, "ray", "2.40")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "ray from version 2.56 on, and 2.40 is installed" in str(missing_package(moved, "it"))


def test_a_public_name_of_an_old_package_says_so(tmp_path: Path) -> None:
    """A package whose names have moved since: the import fails before any check could run."""
    install(tmp_path, "ray", "2.9.0")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("")
    code = "import forebay as fb\ntry: fb.DeadlineScheduler\nexcept fb.errors.MissingPackage as error: print(error)"
    path = f"{tmp_path}:{Path(fb.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=False
    )
    assert done.stdout.startswith("fb.DeadlineScheduler needs the package ray from version 2.56 on, and 2.9.0 is"), (
        done.stderr
    )


def test_every_import_of_an_extra_is_checked() -> None:
    """Those in functions. An import at the top fails with the public name, and `missing_package` reads its error."""
    unchecked: dict[str, list[str]] = {}
    seen = 0
    for path in (ROOT / "platform" / "forebay").rglob("*.py"):
        tree = ast.parse(path.read_text())
        checked = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and "extra_package(" in ast.unparse(node.items[0].context_expr)
            for inner in ast.walk(node)
        }
        file = str(path.relative_to(ROOT / "platform" / "forebay"))
        for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
            for node in ast.walk(function):
                names = _imported(node) & (PACKAGES.keys() | MODULES.keys()) - {"ray", "horovod"}
                seen += len(names)
                if names and id(node) not in checked:
                    unchecked.setdefault(file, []).extend(names)
    assert seen > 25
    assert unchecked.keys() == CHECKED_BEFORE.keys(), unchecked


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()
