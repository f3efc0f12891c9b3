"""Description of the machine that a bench ran on, for its document."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.processes import REPOSITORY


def machine() -> dict[str, Any]:
    """Cores, processor, memory and system, and the load before the run."""
    models = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cores": os.cpu_count(),
        "cpu": models[0] if models else platform.processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def machine_and_code(commit: str | None = None) -> dict[str, Any]:
    """`machine()`, with usable cores, GPU, versions, date and commit. For a bench that runs anywhere.

    `commit` is for a copy of the repository without its history.
    """
    import numpy  # noqa: PLC0415 - slow to import
    import pyarrow  # noqa: PLC0415 - slow to import
    import torch  # noqa: PLC0415 - slow to import

    from forebay.data.cache.builders.data_workers import usable_cores  # noqa: PLC0415 - as above

    return machine() | {
        "usable_cores": usable_cores(),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "pyarrow": pyarrow.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit or _commit(),
    }


def _commit() -> str:
    """Commit of the repository. "unknown" in a copy without its history."""
    git = shutil.which("git")
    if git is not None:
        with suppress(OSError, subprocess.CalledProcessError):
            line = [git, "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
            return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    return "unknown"
