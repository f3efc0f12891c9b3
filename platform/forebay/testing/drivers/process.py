"""Driver in a process that a test can kill.

python -m forebay.testing.drivers.process DRIVER forebay.testing.drivers.bench:DriverBench FOLDER rows NAME '{}'
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from forebay.errors import ExitCode, Fenced
from forebay.testing.drivers.bench import DriverBench
from forebay.training.checkpoint.files import claim
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence

PATIENCE_S = 300.0
FENCED_CODE = ExitCode.FENCED


class DriverProcess:
    """Process that runs a job of the bench.

    The job is `name` of the bench in `folder`. `driver` names a class as `module:Class`.
    """

    def __init__(
        self, driver: str, bench: DriverBench, name: str, environment: Mapping[str, str], **options: object
    ) -> None:
        self._bench, self._name = bench, name
        maker = f"{type(bench).__module__}:{type(bench).__qualname__}"
        arguments = [driver, maker, str(bench.folder), bench.order, name, json.dumps(options)]
        self._log = bench.folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-m", __name__, *arguments], stdout=log, stderr=log, env={**os.environ, **environment}
            )

    @property
    def output(self) -> str:
        """Text that the process has written."""
        return self._log.read_text()

    def wait_for(self, step: int) -> None:
        """Wait until `step` is reached.

        Raises if the process ends before.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not any(each.step >= step for each in self._bench.attempts(self._name)):
            assert self._process.poll() is None, f"the driver ended early: {self.output[-2000:]}"
            assert time.monotonic() < deadline, f"no step {step}: {self.output[-2000:]}"
            time.sleep(0.02)

    def kill_at(self, step: int) -> None:
        """Kill the process (SIGKILL) once `step` is reached.

        Raises if it ends before.
        """
        try:
            self.wait_for(step)
        finally:
            self.kill()

    def suspend(self) -> None:
        """Stop the process (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended process go on."""
        self._process.send_signal(signal.SIGCONT)

    def exit_code(self) -> int:
        """Wait for the end of the process.

        Returns its exit code.
        """
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the process (SIGKILL), unless it has ended."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Run the job given on the command line.

    Exits with code 75 if another attempt has taken over.

    Of its options, `start` are fields of `StartPolicy`. `ask_s` is the time between two questions of the fence, and
    `gone_s` the time for which the attempt's own claim may be missing.
    """
    driver, maker, folder, order, name, text = sys.argv[1:]
    options = json.loads(text)
    fence.ASK_S = options.pop("ask_s", fence.ASK_S)
    claim.GONE_S = options.pop("gone_s", claim.GONE_S)
    if "start" in options:
        options["start"] = StartPolicy(**options["start"])
    job = pkgutil.resolve_name(maker)(Path(folder), order).job(name, **options)
    try:
        pkgutil.resolve_name(driver)().run(job)
    except Fenced:
        sys.exit(FENCED_CODE)


if __name__ == "__main__":
    main()
