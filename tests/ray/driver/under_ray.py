"""What the suites of all drivers on Ray have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import psutil
import ray

from forebay.testing.driver_nodes import kill_stores
from forebay.testing.driver_suite import DriverSuite


class UnderRay(DriverSuite):
    """Runs on the Ray of this process. `titles` are what a driver's processes are called, in their beginnings."""

    titles: ClassVar[tuple[str, ...]]

    def environment(self) -> Mapping[str, str]:
        return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def lose_memory(self, run: str) -> int:
        return kill_stores(run)

    def leftovers(self) -> list[str]:
        # The guard of tests/ray/conftest.py looks at actors and placement groups; these are processes.
        ours = psutil.Process().children(recursive=True)
        return [title for process in ours if (title := _title(process)).startswith(self.titles)]


def _title(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.Error:
        return ""
