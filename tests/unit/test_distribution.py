"""Wheel and source archive, as they are published."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORM = ("ray", "pandas")
SMOKE = """
import sys
import pyarrow, pyarrow.parquet
import forebay as fb

pyarrow.parquet.write_table(pyarrow.table({"x": [1.0] * 64, "y": [0.0] * 64}), "part.parquet")
transform = fb.Transform(x=fb.Dense(["x"]), y=fb.Label("y"))
plan = fb.build_plan(fb.scan("part.parquet"))
LOADS
try:
    fb.run_sweep(fb.Sweep(lambda x: x, {"x": [1, 2]}, "loss", "min"))
except fb.errors.MissingPackage as error:
    print(error)
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module}
print(sorted(loaded & {"ray", "pandas"}))
"""
LOADS = """
cache = fb.DiskCache("cache", quota_bytes=1 << 24, min_free_bytes=0)
with fb.Loader(plan, transform, cache, global_batch=32, last="drop") as loader:
    assert [len(batch["x"]) for batch in fb.bridges.torch.as_dataset(loader)] == [32, 32]
"""
SMOKE_OF_LOADER = SMOKE.replace("LOADS", LOADS)
# Compiling the loops in a new place takes 20 s of processor time.
SMOKE_WITHOUT_LOOPS = SMOKE.replace("LOADS", "import forebay.cli.app, forebay.training.worker.fit")
SAID = "run_sweep needs the package ray, which is not installed. Run: pip install 'forebay[ray]'\n[]\n"


def without_platform() -> str:
    """Begin of a program that finds no package of the platform."""
    return (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {PLATFORM!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )


def test_the_data_plane_needs_no_package_of_the_platform(tmp_path: Path) -> None:
    names = (
        "for name in dir(fb):\n"
        "    try: getattr(fb, name)\n"
        "    except fb.errors.MissingPackage: print(name, end=' ')\n"
        "import forebay.cli.app, forebay.training.driver.driver\n"
        "try: forebay.training.driver.driver.named_driver('ray')\n"
        "except fb.errors.MissingPackage as error: print(error)\n"
        "forebay.cli.app.main(['jobs', '--ray'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_platform() + SMOKE_OF_LOADER + names],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == SAID + (
        "DeadlineScheduler "
        "driver='ray' (driver='local' does not) needs the package ray, which is not installed. Run: "
        "pip install 'forebay[ray]'\n"
    ), done.stderr
    assert done.stderr.splitlines()[-1] == (
        "MissingPackage: This command needs the package ray, which is not installed. Run: pip install 'forebay[ray]'"
    )


def test_the_extras_of_the_platform_are_not_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [line for line in project["dependencies"] if line.startswith(PLATFORM)]
    extras = project["optional-dependencies"]
    assert all(any(line.startswith(name) for line in extras["ray"]) for name in PLATFORM)
    assert all(
        "forebay[" in extras[name][0] and "ray" in extras[name][0] for name in ("horovod", "score", "sweep", "test")
    )


def test_wheel_holds_the_package_and_runs_the_data_plane(tmp_path: Path) -> None:
    """With the build tools and the packages of this environment: nothing is downloaded."""
    wheel, _ = published(tmp_path, "--no-isolation")
    sources = {str(path.relative_to(ROOT / "platform")) for path in (ROOT / "platform/forebay").rglob("*.py")}
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if ".dist-info/" not in name}
        packed.extractall(tmp_path / "installed")
    assert held == sources | {"forebay/py.typed"}
    blocked = without_platform() + f"sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
    where = "print(fb.__file__)\n"
    said = run(sys.executable, "-c", blocked + SMOKE_WITHOUT_LOOPS + where, cwd=tmp_path)
    assert said == f"{SAID}{tmp_path}/installed/forebay/__init__.py\n"


@pytest.mark.variation("installs packages")
@pytest.mark.timeout(900)
def test_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    wheel, _ = published(tmp_path)
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "torch==2.13.0", str(wheel))
    assert run(python, "-c", SMOKE_OF_LOADER, cwd=tmp_path) == SAID
    run(python, "-m", "pip", "check")


def published(folder: Path, *options: str) -> tuple[Path, Path]:
    """Wheel and source archive, the first made of the second, as `twine` accepts them for the index."""
    pytest.importorskip("build")
    pytest.importorskip("twine")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "platform", source / "platform", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "build", *options, "--outdir", str(folder / "dist"), str(source))
    wheel, archive = sorted((folder / "dist").iterdir(), key=lambda path: path.suffix != ".whl")
    assert (wheel.suffix, archive.name) == (".whl", "forebay-0.1.0.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    return wheel, archive


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
