"""Wheel and source archive, as they are published."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORM = ("ray", "pandas", "matplotlib")
SMOKE = """
import sys
import pyarrow, pyarrow.parquet
import forebay as fb

pyarrow.parquet.write_table(pyarrow.table({"x": [1.0] * 64, "y": [0.0] * 64}), "part.parquet")
transform = fb.Transform(x=fb.Dense(["x"]), y=fb.Label("y"))
cache = fb.DiskCache("cache", quota_bytes=1 << 24, min_free_bytes=0)
with fb.Loader(fb.build_plan(fb.scan("part.parquet")), transform, cache, global_batch=32, last="drop") as loader:
    assert [len(batch["x"]) for batch in fb.torch.as_dataset(loader)] == [32, 32]
try:
    fb.run_sweep
except fb.errors.MissingPackage as error:
    print(error)
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module}
print(sorted(loaded & {"ray", "pandas", "matplotlib"}))
"""
SAID = "fb.run_sweep needs the package ray, which is not installed. Run: pip install 'forebay[ray]'\n[]\n"


def test_the_data_plane_needs_no_package_of_the_platform(tmp_path: Path) -> None:
    blocker = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {PLATFORM!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    names = (
        "for name in fb.__all__:\n"
        "    try: getattr(fb, name)\n"
        "    except fb.errors.MissingPackage: print(name, end=' ')\n"
        "import forebay.cli.app, forebay.driver.driver\n"
        "try: forebay.driver.driver.named_driver('ray')\n"
        "except fb.errors.MissingPackage as error: print(error)\n"
        "forebay.cli.app.main(['ps'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocker + SMOKE + names], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout == SAID + (
        "DeadlineScheduler SweepResult from_ray_data load_preprocessor load_sweep prepare_on_ray ray_train run_sweep "
        "driver='ray' needs the package 'ray', which is not installed. Run: pip install 'forebay[ray]', or use "
        "driver='local'.\n"
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


@pytest.mark.variation("builds and installs packages")
@pytest.mark.timeout(900)
def test_wheel_and_source_archive_are_whole(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("twine")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.egg-info", "shared", "runs", "data"),
    )
    run(sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(source))
    wheel, archive = sorted((tmp_path / "dist").iterdir(), key=lambda path: path.suffix != ".whl")
    assert (wheel.suffix, archive.name) == (".whl", "forebay-0.1.0.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "torch==2.13.0", str(wheel))
    assert run(python, "-c", SMOKE, cwd=tmp_path) == SAID
    run(python, "-m", "pip", "check")


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
