"""Virtual environment of each peer, made once and reused."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
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


def _last_error(log: Path) -> str:
    lines = log.read_text().splitlines()
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")
