"""The script of the image, in its own environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"


@pytest.mark.variation
@pytest.mark.timeout(1200)
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
    assert "deploy/docker/system.sh" in text
    # The build needs no more of the repository than what .dockerignore lets through.
    assert all((ROOT / each).exists() for each in through())


def test_lock_has_what_the_chart_offers_with_hashes() -> None:
    """Write it again by scripts/lock_image.py when an extra or a bound changes."""
    text = (DOCKER / "requirements.lock").read_text()
    assert f"# extras: {','.join(extras())}\n" in text
    blocks = re.split(r"\n(?=[a-z0-9])", text.partition("\n")[2].partition("\n")[2])
    pins = dict(block.split(" ")[0].split("==") for block in blocks)
    assert all("--hash=sha256:" in block for block in blocks)
    assert {"boto3", "google-auth", "hdfs-native", "kubernetes", "jupyterlab", "ray", "torch"} <= pins.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for each in extras() for line in project["optional-dependencies"][each])]
    for each in map(Requirement, [*wanted, *project["optional-dependencies"]["ray"]]):
        if each.name != "forebay":
            assert each.specifier.contains(pins[each.name.replace("_", "-").lower()]), each


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_image_is_built_in_a_fresh_root_file_system(tmp_path: Path) -> None:
    """Debian and its Python in place of an image of Ray, the scripts of the Dockerfile, and what the chart calls."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap: apt-get install debootstrap")
    root = tmp_path / "root"
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    run(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, "http://deb.debian.org/debian"])
    for each in through():
        target = root / "tmp" / "forebay" / each
        target.parent.mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        source = ROOT / each
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    for each in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(each, root / each[1:])
    run(["mount", "--bind", "/proc", root / "proc"])
    try:
        env = {"PATH": "/opt/env/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
        env |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        env["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"
        inside(root, env, "python3 -m venv /opt/env")
        wheel = next(Path(os.environ.get("PIP_FIND_LINKS", "/nowhere")).glob("torch-2.13.0+cpu-cp311-*.whl"), None)
        if wheel is not None:  # without the libraries of CUDA, 3 GB
            shutil.copy(wheel, root / "tmp")
            inside(root, env, f"python -m pip install -q --no-deps /tmp/{wheel.name}")
        inside(root, env, "/tmp/forebay/deploy/docker/system.sh")
        text = inside(root, env, f"/tmp/forebay/deploy/docker/install.sh python {','.join(extras())}")
        assert "No broken requirements found" in text and "forebay 0.1.0 on ray 2.60" in text
        user = {**env, "HOME": "/tmp"}
        modules = "boto3, google.auth, hdfs_native, kubernetes, transformers, mlflow, optuna, tensorboard, jupyterlab"
        inside(root, user, f'python -c "import {modules}"', uid=1000)
        inside(
            root,
            user,
            "klist -V && kinit -k -t /none nobody@NOWHERE 2>&1 | grep -iE 'keytab|realm|conf'",
            uid=1000,
        )
        inside(root, user, "jupyter lab --version && forebay fleet controller --help", uid=1000)
    finally:
        run(["umount", root / "proc"])


def extras() -> list[str]:
    found = re.search(r"^ARG EXTRAS=(.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split(",")


def through() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("!")]


def run(words: list[str | Path]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def inside(root: Path, env: dict[str, str], line: str, *, uid: int = 0) -> str:
    settings = [f"{name}={value}" for name, value in env.items()]
    return run(["chroot", f"--userspec={uid}:{uid}", root, "env", "-i", *settings, "bash", "-c", line])


def install(python: Path, *packages: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
