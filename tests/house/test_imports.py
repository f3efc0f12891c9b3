from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

MOST_NAMES = 65
HEAVY = ("ray", "torch", "pyarrow", "numba", "numpy", "pandas", "matplotlib", "pydantic", "typer")


def _loaded_by(statement: str, folder: Path) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    script = (
        f"{statement}\nimport sys, json; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=folder)
    return set(json.loads(done.stdout))


def test_import_forebay_is_light(tmp_path: Path) -> None:
    loaded = _loaded_by("import forebay", tmp_path)
    assert "forebay" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_plan_needs_neither_ray_nor_torch_nor_pyarrow(tmp_path: Path) -> None:
    loaded = _loaded_by("import forebay; forebay.build_plan, forebay.World, forebay.Cursor", tmp_path)
    assert loaded.isdisjoint({"ray", "torch", "pyarrow"})


def test_loading_data_needs_no_ray(tmp_path: Path) -> None:
    names = (
        "forebay.scan, forebay.Transform, forebay.DiskCache, forebay.Loader, forebay.Worker, forebay.fit, forebay.Job"
    )
    loaded = _loaded_by(f"import forebay; {names}", tmp_path)
    assert "torch" in loaded
    assert "ray" not in loaded


def test_every_public_name_can_be_imported(tmp_path: Path) -> None:
    assert "forebay" in _loaded_by("import forebay; [getattr(forebay, name) for name in forebay.__all__]", tmp_path)


def test_public_modules_come_with_the_package(tmp_path: Path) -> None:
    loaded = _loaded_by("import forebay as fb; fb.events.EpochEnded, fb.errors.ForebayError, fb.callbacks", tmp_path)
    assert loaded.isdisjoint(HEAVY)
    _loaded_by("import forebay as fb; fb.callbacks.progress.Progress, fb.callbacks.scaling.ScaleSchedule", tmp_path)


def test_a_star_import_works_without_ray_and_replaces_no_module_of_others(tmp_path: Path) -> None:
    script = (
        "import sys, torch, json\n"
        "sys.modules.update(dict.fromkeys(['ray', 'pandas', 'matplotlib', 'optuna']))\n"
        "import concurrent.futures as futures\n"
        "from concurrent.futures import Future\n"
        "from forebay import *\n"
        "assert torch.__name__ == 'torch' and Future is futures.Future\n"
        "assert scan and Loader and run and Sweep and callbacks and tables\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_the_front_door_has_few_names() -> None:
    assert 40 < len(dir(forebay)) <= MOST_NAMES


def test_an_unknown_name_is_an_attribute_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        _loaded_by("import forebay; getattr(forebay, 'Lodaer')", tmp_path)
    assert "AttributeError: module 'forebay' has no attribute 'Lodaer'. Did you mean: 'Loader'?" in raised.value.stderr


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A copy of the package and its contracts that a test may break."""
    shutil.copy(repository / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "platform" / "forebay", tmp_path / "forebay", ignore=ignored)
    return tmp_path


WRONG = (
    ("data.transform.transform", "forebay.data.loader.loader", "Inside data"),
    ("data.plan.plan", "forebay.data.cache.disk.disk_cache", "Inside data"),
    ("data.plan.plan", "time", "The plan is pure"),
    ("training.worker.worker", "ray", "Ray is met only by its adapters"),
    ("cli.run", "ray", "Ray is met only by its adapters"),
    ("data.loader.loader", "forebay.data.cache.node.client", "works without Ray"),
)


def test_wrong_imports_are_caught(copy: Path) -> None:
    for module, imported, _ in WRONG:
        with (copy / "forebay" / f"{module.replace('.', '/')}.py").open("a") as source:
            source.write(f"\nimport {imported}\n")
    done = _lint(copy)
    assert done.returncode != 0
    # Name and chains of each broken contract.
    chains = re.findall(r"^(\S[^\n]*)\n-{9,}\n(.*?)(?=^\S[^\n]*\n-{9,}\n|\Z)", done.stdout, re.MULTILINE | re.DOTALL)
    for module, imported, contract in WRONG:
        chain = f"forebay.{module} -> {imported} (l."
        assert any(contract in name and chain in text for name, text in chains), f"{chain}\n{done.stdout}"


def test_a_new_package_must_be_given_its_floor(copy: Path) -> None:
    (copy / "forebay" / "gadgets.py").touch()
    done = _lint(copy)
    assert done.returncode != 0
    assert "gadgets" in done.stdout, done.stdout


def _lint(copy: Path) -> subprocess.CompletedProcess[str]:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        check=False,
        capture_output=True,
        text=True,
        cwd=copy,
        # The copy comes before the installed package.
        env={"PYTHONPATH": str(copy), "COLUMNS": "200"},
    )
