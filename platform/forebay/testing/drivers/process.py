"""Driver in a process of its own, so that a test can kill it.

python -m forebay.testing.drivers.process forebay.driver.local.driver:LocalDriver FOLDER rows NAME '{"workers": 2}'
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from forebay.testing.drivers.bench import BenchOrder, DriverBench

PATIENCE_S = 120.0


class DriverProcess:
    """Process that runs the job `name` of the bench in `folder`. `driver` names a class as `module:Class`."""

    def __init__(
        self, driver: str, bench: DriverBench, name: str, environment: Mapping[str, str], **options: object
    ) -> None:
        self._bench, self._name = bench, name
        command = [sys.executable, "-m", __name__, driver, str(bench.folder), bench.order, name, json.dumps(options)]
        self._log = bench.folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command, stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def kill_at(self, step: int) -> None:
        """Kill the process (SIGKILL) once `step` is reached. Raises if it ends before."""
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not any(each.step >= step for each in self._bench.attempts(self._name)):
                assert self._process.poll() is None, f"the driver ended early: {self._log.read_text()[-2000:]}"
                assert time.monotonic() < deadline, f"no step {step}: {self._log.read_text()[-2000:]}"
                time.sleep(0.02)
        finally:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run the job given on the command line."""
    driver, folder, order, name, options = sys.argv[1:]
    job = DriverBench(Path(folder), cast("BenchOrder", order)).job(name, **json.loads(options))
    pkgutil.resolve_name(driver)().run(job)


if __name__ == "__main__":
    main()
