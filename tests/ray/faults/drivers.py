"""Drivers of a run in processes of their own, which fork from one that has the imports, and no Ray."""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.soak.faults.runs import check_words, job_of
from tests.soak.siege import ENDED_CODE, code_of, hurry

from forebay.errors import ForebayError
from forebay.ray_cluster.session import ADDRESS
from forebay.testing.drivers.bench import BenchOrder, DriverBench
from forebay.training.driver.driver import named_driver
from forebay.training.job.start_policy import StartPolicy

TAKEOVER_S = 6.0


class DriverServer:
    """Forks a driver for each `start`. It is a fork of this process, which must not have used Ray before."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if not self._pid:
            self._connection.close()
            _serve(theirs)
        theirs.close()

    def start(self, work: Callable[[], object], log: Path) -> int:
        """Run `work` in a fork that writes to `log`. Returns its process id."""
        self._connection.send((work, str(log)))
        return int(self._connection.recv())

    def code_of(self, pid: int) -> int | None:
        """Exit code of an ended driver, once. None for one that runs."""
        self._connection.send(pid)
        code: int | None = self._connection.recv()
        return code

    def close(self) -> None:
        self._connection.close()
        os.waitpid(self._pid, 0)


def _serve(connection: Connection) -> None:
    children = set[int]()
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            children.discard(pid)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)
        elif pid := os.fork():
            children.add(pid)
            connection.send(pid)
        else:
            connection.close()
            _as_program(*asked)


def _as_program(work: Callable[[], object], log: str) -> None:
    output = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, file=2)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = ENDED_CODE
    except BaseException:  # noqa: BLE001 - as Python does with a program
        traceback.print_exc()
    with suppress(KeyboardInterrupt):
        atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def drive(driver: str, folder: Path, order: BenchOrder, address: str, machines: bool, options: dict[str, Any]) -> None:
    """Run the job as a program does. `machines`: it cannot see whether the other drivers live."""
    os.environ[ADDRESS] = address
    hurry(machines=machines, ask_s=0.5)
    job = job_of(
        DriverBench(folder, order), workers=1, start=StartPolicy(follow=True, takeover_s=TAKEOVER_S), **options
    )
    try:
        named_driver(driver).run(job)
    except ForebayError as error:
        check_words(error)
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(code_of(error))
