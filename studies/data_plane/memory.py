"""Memory of a plan in a rank, by a process that gets it as a worker does."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from studies.data_plane.lake import lake

from forebay.data.plan.plan import build_plan


def measure(groups: int, groups_per_file: int) -> str:
    """Bytes of the pickle and of a rank, and their CPU seconds."""
    plan = build_plan(lake(groups, groups_per_file), seed=1, lanes=1024)
    used = time.process_time()
    payload = pickle.dumps(plan)
    used = time.process_time() - used
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        path.write_bytes(payload)
        command = [sys.executable, "-m", "studies.data_plane.memory", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - of this module
    return f"pickle {len(payload) / 1e6:.1f} MB in {used:.2f} s; in a rank {done.stdout.strip()}"


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _load(path: Path) -> None:
    pickle.loads(pickle.dumps(build_plan(lake(100), seed=1)))  # noqa: S301 - imports and compiled kernels
    payload = path.read_bytes()
    before, used = _resident_mb(), time.process_time()
    plan = pickle.loads(payload)  # noqa: S301 - of its parent
    used = time.process_time() - used
    print(f"{_resident_mb() - before:.0f} MB in {used:.2f} s of CPU ({plan.num_rows:,} rows)")


if __name__ == "__main__":
    _load(Path(sys.argv[1]))
