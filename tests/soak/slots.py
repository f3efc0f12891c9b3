"""Processes that run cases and survive them: each case gets a fork, which contains the damage."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from io import RawIOBase
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

from tests.soak import mounts
from tests.soak.case import AT_END, FAULTS, TERMS, CannotStage, Case, patience, rng_of

_SPARE_S = 15.0
"""Time that a case process has after its deadline to write tracebacks and end. Then it is killed."""


@dataclass
class CaseResult:
    """Result of a case. `kind` is its outcome's, or "failed", and then `detail` says why."""

    fault: str
    seed: int
    kind: str
    detail: str
    seconds: float
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        return Case(self.fault, self.seed)


def run_here(case: Case, parent: Path | None = None) -> CaseResult:
    """Run a case in this process, in a new folder below `parent`, and look for leaks."""
    from tests.soak.guards import Before

    folder = Path(tempfile.mkdtemp(prefix="forebay-soak-", dir=parent))
    start = time.monotonic()
    before, struck = Before(), dict[str, int]()
    try:
        outcome = FAULTS[case.fault](rng_of(case), folder)
        kind, detail, struck = outcome.kind, outcome.detail, dict(outcome.faults)
        # A group shares a session, which may keep resources: such faults check for leaks themselves.
        leaks = [] if TERMS[case.fault].group else before.leaks()
        if leaks:
            kind, detail = "failed", f"left behind: {'; '.join(leaks)}"
    except CannotStage as error:
        kind, detail = "skipped", str(error)
    except BaseException:  # noqa: BLE001 - this is where cases are judged
        kind, detail = "failed", traceback.format_exc()
    finally:
        _remove(folder)
    return CaseResult(case.fault, case.seed, kind, detail, time.monotonic() - start, struck)


def run_forked(cases: list[Case]) -> Iterator[CaseResult]:
    """Run cases one after another in a fork of this process. A case that ends the process has failed."""
    left = list(cases)
    while left:
        for result in _one_fork(list(left)):
            left.pop(0)
            yield result


def _remove(folder: Path) -> None:
    mounts.unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _one_fork(cases: list[Case]) -> Iterator[CaseResult]:
    # Made and removed here: a case whose process is killed cannot clean up.
    # A short name: sockets of Ray are below it.
    parent = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        yield from _fork(cases, parent)
    finally:
        _remove(parent)


def _fork(cases: list[Case], parent: Path) -> Iterator[CaseResult]:
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below, and shared with the child before
    start = time.monotonic()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _in_child(cases, parent, write, log)
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as answers, log, contextlib.ExitStack() as ends:
        ends.callback(_end, pid, 0.0)
        for case in cases:
            line = _line_within(answers, patience(TERMS[case.fault].deadline_s) + _SPARE_S)
            if not line:
                ends.pop_all()
                code = _end(pid, patience_s=0.0)
                why = f"the process of the case ended ({code}) or stood still.\n{_text(log)}"
                yield CaseResult(case.fault, case.seed, "failed", why, time.monotonic() - start)
                return
            result, start = CaseResult(**json.loads(line)), time.monotonic()
            if result.kind in ("failed", "skipped"):
                # Anything that it left behind would disturb the next case.
                ends.close()
                result.detail += _text(log) if result.kind == "failed" else ""
                yield result
                return
            yield result
        ends.pop_all()
        _end(pid, patience_s=10.0)


def _text(log: TextIO) -> str:
    log.seek(0)
    return log.read()[-6000:]


def _line_within(answers: RawIOBase, deadline_s: float) -> bytes:
    # Unbuffered: a second line in a buffer would be invisible to select().
    ready, _, _ = select.select([answers], [], [], deadline_s)
    return answers.readline() if ready else b""


def _end(pid: int, patience_s: float) -> str:
    """Wait for the process group of a case, then end it."""
    give_up = time.monotonic() + patience_s
    status = 0
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done or time.monotonic() > give_up:
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not done:
        _, status = os.waitpid(pid, 0)
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _in_child(cases: list[Case], parent: Path, answers: int, log: TextIO) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    random.seed(0)
    # Processes that are killed leave temporary files, and what a run leaves is found here.
    os.environ["TMPDIR"] = tempfile.tempdir = str(parent)
    for case in cases:
        # Writes the tracebacks of all threads and ends the process: a case that hangs never stops the run.
        faulthandler.dump_traceback_later(patience(TERMS[case.fault].deadline_s), exit=True, file=sys.__stderr__)
        result = run_here(case, parent)
        faulthandler.cancel_dump_traceback_later()
        os.write(answers, json.dumps(asdict(result)).encode() + b"\n")
    for end in AT_END:
        end()
    os._exit(0)


def warm_up(*, under_ray: bool = True) -> None:
    """Import everything that cases use, once. The package loads its parts at first use."""
    import tests.soak.faults

    import forebay

    tests.soak.faults.load(under_ray=under_ray)
    for name in forebay.__all__:
        getattr(forebay, name)


def serve(connection: Connection, under_ray: bool) -> None:
    """Main function of a slot: receives lists of cases and sends results. Forks before any thread has started."""
    mounts.make_private()
    warm_up(under_ray=under_ray)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    gc.freeze()
    connection.send("ready")
    while cases := connection.recv():
        for result in run_forked(cases):
            connection.send(result)
        connection.send(None)


class CaseSlot:
    """A process with everything imported, which forks for each case."""

    def __init__(self, *, under_ray: bool = True, forks: bool = False) -> None:
        context = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, under_ray), name="soak-slot")
        self._process.start()
        theirs.close()

    def run(self, cases: list[Case]) -> Iterator[CaseResult]:
        """Yield results as they come. The first call waits for `Ready`."""
        self.connection.send(cases)
        while result := self.connection.recv():
            if result != "ready":
                yield result

    def cut(self) -> None:
        """End it, and the case that it runs."""
        self._process.terminate()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was cut
            self.connection.send([])
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()
