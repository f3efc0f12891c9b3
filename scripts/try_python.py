"""Run the unit tests and one run on Ray on another Python: `make test-python PYTHON=3.13`.

Everything is installed into an environment of its own. Packages of the tests that have no wheel for that Python are
named and left out: their tests skip or fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FOREBAY_PYTHONS", "~/.cache/forebay/pythons")).expanduser()
TESTS = (
    "tests/unit",
    "tests/house",
    "tests/ray/training/driver/ray_train/test_driver.py::test_starts_a_ray_of_its_own_and_ends_it",
)
PYENV = "~/.pyenv/versions"
UV = "~/.local/share/uv/python"
INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def interpreter(version: str) -> str:
    """Path of Python `version`, which may be a path. Exits if this machine has none."""
    name = version.strip("/").replace("/", "-")
    kept = [*_newest_first(PYENV, f"{name}*/bin/python"), *_newest_first(UV, f"cpython-{name}*/bin/python")]
    # A shim of pyenv is on the PATH for every version, and fails for those that are not chosen.
    for found in (shutil.which(version), shutil.which(f"python{version}"), *kept):
        if found and _is_done([found, "-c", ""], quiet=True):
            return found
    sys.exit(
        f"Python {version} was asked for, and there is no python{version} on the PATH nor one of pyenv or uv. Install "
        f"it (`pyenv install {version}`, `uv python install {version}`), or name its path: PYTHON=/path/to/python"
    )


def _newest_first(folder: str, pattern: str) -> list[str]:
    return sorted(map(str, Path(folder).expanduser().glob(pattern)), reverse=True)


def environment(version: str) -> Path:
    """Folder of an environment with Forebay and what its tests need."""
    folder = FOLDER / version.strip("/").replace("/", "-")
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        _run([interpreter(version), "-m", "venv", str(folder)])
    _run([python, *INSTALL, "--editable", f"{ROOT}[ray]", "pytest>=8.4", "pytest-timeout>=2.3"])
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    others = [each for each in wanted if not each.startswith("forebay")]
    if not _is_done([python, *INSTALL, "--only-binary", ":all:", *others]):
        missing = [each for each in others if not _is_done([python, *INSTALL, "--only-binary", ":all:", each])]
        print(f"== no wheels for Python {version}: {', '.join(missing) or 'none'}", flush=True)
    return folder


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - words of this file, and a version


def _is_done(command: list[str], *, quiet: bool = False) -> bool:
    errors = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, check=False, stderr=errors).returncode == 0  # noqa: S603 - words of this file, a version


def main() -> None:
    """Run the tests, and exit as pytest does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="a version of Python, such as 3.13, or the path of one")
    parser.add_argument("tests", nargs="*", default=TESTS, help="arguments of pytest")
    given = parser.parse_args()
    programs = environment(given.version) / "bin"
    # Tests start `ray` and `forebay` by name.
    variables = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    # In a fresh environment, tests that look at stderr would find the line about kernels.
    _run([str(programs / "python"), "-c", "from forebay.data.parquet import page_kernels; page_kernels.load_all()"])
    print(f"== Python {given.version}: pytest {' '.join(given.tests)}", flush=True)
    command = [str(programs / "python"), "-m", "pytest", *given.tests]
    sys.exit(subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode)  # noqa: S603


if __name__ == "__main__":
    main()
