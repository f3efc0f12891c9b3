"""Virtual environment of each peer, made once and reused."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from bench.loader.peers import OWN, VENVS


class CannotInstall(RuntimeError):
    """Raised if the environment of a peer cannot be made. The message is pip's last line."""


def interpreter(name: str, folder: Path) -> Path:
    """Python of environment `name` below `folder`, made if it is missing or was made from other packages.

    Raises:
        CannotInstall: pip failed. Its log is beside the environment.
    """
    if name == OWN:
        return Path(sys.executable)
    home, log, installed = folder / name, folder / f"{name}.log", folder / name / "installed.json"
    python = home / "bin" / "python"
    wanted = json.dumps(VENVS[name])
    if installed.exists() and installed.read_text() == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        venv.create(home, with_pip=True)
    with log.open("w") as output:
        for step in VENVS[name]:
            command = [python, "-m", "pip", "install", "--progress-bar", "off", *step]
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:  # noqa: S603
                raise CannotInstall(f"pip install {' '.join(step)}: {_last_error(log)} (all of it: {log.name})")
    installed.write_text(wanted)
    return python


def interpreters(names: Iterable[str], folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Python of each environment, and the reason for each that cannot be made. Tells what it makes."""
    pythons: dict[str, Path] = {}
    failed: dict[str, str] = {}
    for name in sorted(set(names)):
        print(f"environment of {name or 'forebay'} (minutes the first time)", flush=True)
        try:
            pythons[name] = interpreter(name, folder)
        except CannotInstall as error:
            failed[name] = str(error)
    return pythons, failed


def _last_error(log: Path) -> str:
    lines = log.read_text().splitlines()
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")
