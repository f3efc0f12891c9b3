"""Run the tests that exercise Ray on another version of Ray: `make test-ray-range RAY=2.61.0`.

The version is installed without its dependencies into an environment of its own, on top of the one that runs this.
ADR 0109 has the versions that were tried.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FOREBAY_RAYS", "~/.cache/forebay/rays")).expanduser()
TESTS = ("tests/unit/ray_cluster", "tests/unit/sweep/tune", "tests/ray")


def environment(version: str) -> Path:
    """Folder of an environment with Ray `version`, made if it is not there.

    Exits if pip cannot install that version for this Python.
    """
    folder = FOLDER / f"{version}-py{sys.version_info.major}{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())  # noqa: S603
    # Processed after the environment's own packages, so that its Ray comes first. Rewritten for another clone.
    below = sysconfig.get_path("purelib")
    (own / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", f"ray=={version}"]
    has_ray = (own / f"ray-{version}.dist-info").exists()
    if not has_ray and subprocess.run(install, check=False).returncode:  # noqa: S603 - words of this file, a version
        sys.exit(
            f"Ray {version} was asked for, and pip could not install it, see above. Choose of: pip index versions ray"
        )
    return folder


def main() -> None:
    """Run the tests, and exit as pytest does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="a version of Ray, such as 2.56.1")
    parser.add_argument("tests", nargs="*", default=TESTS, help="arguments of pytest")
    given = parser.parse_args()
    programs = environment(given.version) / "bin"
    # Tests start `ray` and `forebay` by name, and processes of Ray are started by the Python of this environment.
    variables = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    print(f"== Ray {given.version}: pytest {' '.join(given.tests)}", flush=True)
    command = [str(programs / "python"), "-m", "pytest", *given.tests]
    sys.exit(subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode)  # noqa: S603


if __name__ == "__main__":
    main()
