"""Write deploy/docker/requirements.lock: versions and hashes of all packages of the image.

They are for Python 3.11 on x86-64 Linux. It is resolved by uv, which is installed for the length of the script.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "deploy" / "docker"
LOCK = DOCKER / "requirements.lock"


def extras() -> list[str]:
    """Extras of the Dockerfile."""
    found = re.search(r"^ARG EXTRAS=(.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split(",")


def main() -> None:
    """Resolve and write."""
    named = extras()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        binary = Path(folder) / "bin"
        subprocess.run([binary / "python", "-m", "pip", "install", "--quiet", "uv"], check=True)  # noqa: S603 - words of this file
        words = [word for each in ["ray", *named] for word in ("--extra", each)]
        words += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
        # With no options of the machine: a local wheel has other hashes.
        words += ["--no-config", "--generate-hashes", "--no-header", "--no-annotate", "--quiet", "--upgrade"]
        done = subprocess.run(  # noqa: S603 - words of this file
            [binary / "uv", "pip", "compile", ROOT / "pyproject.toml", "-", *words],
            input="setuptools>=77\n",
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(done.stderr)
    LOCK.write_text(f"# Written by scripts/lock_image.py.\n# extras: {','.join(named)}\n{done.stdout}")


if __name__ == "__main__":
    main()
