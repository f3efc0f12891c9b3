"""The script of the image, in its own environment."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"


@pytest.mark.variation
@pytest.mark.timeout(600)
def test_script_installs_into_a_fresh_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install(python, "torch==2.13.0")
    done = subprocess.run([DOCKER / "install.sh", python, "deploy"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "forebay 0.1.0 on ray 2.60" in done.stdout
    command = [tmp_path / "env" / "bin" / "forebay", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "0.1.0"
    # What the environment had stays.
    version = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("2.13.0")


def test_script_is_what_the_image_runs() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert "deploy/docker/install.sh python" in text
    assert "USER 1000" in text
    subprocess.run(["bash", "-n", DOCKER / "install.sh"], check=True)
    # The build needs no more of the repository than what .dockerignore lets through.
    through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / each).exists() for each in through)


def install(python: Path, *packages: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
