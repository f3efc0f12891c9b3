"""Batch step of a SLURM job: Ray on its nodes, and a command.

    python -m forebay.fleet.slurm.allocation [--shared FOLDER] -- COMMAND...

A SIGTERM is passed to the command, which saves a checkpoint and ends. Then the job is requeued, unless SLURM is already
ending it.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from forebay.errors import ExitCode, ForebayError, InvalidOption, RayNotStarted, UnusableStorage
from forebay.fleet.slurm.commands import ask, tell
from forebay.runtime.foreign_code import begin
from forebay.runtime.termination import Termination

NODE = "forebay.fleet.slurm.ray_node"
READY = "forebay-node-is-ready"
"""Begins the line of a node whose Ray runs. The step's number, the node's name and the cluster's address follow."""
NODES_WITHIN_S = 180.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Job and nodes of this process, by the variables of SLURM."""

    job: str
    nodes: tuple[str, ...]
    restarts: int = 0
    cpus: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Allocation:
        """Read the variables.

        Raises `InvalidOption` outside a job.
        """
        job, listed = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
        if not job or not listed:
            raise InvalidOption(
                "this process is in no SLURM job: SLURM_JOB_ID or SLURM_JOB_NODELIST is not set. Start it by "
                "`sbatch deploy/slurm/forebay.sbatch`, or by `forebay submit --backend slurm`."
            )
        nodes = tuple(tell(["scontrol", "show", "hostnames", listed]).split())
        restarts = int(environment.get("SLURM_RESTART_COUNT", "0"))
        return cls(job=job, nodes=nodes, restarts=restarts, cpus=environment.get("SLURM_CPUS_PER_TASK"))

    def requeue(self) -> bool:
        """Put the job back into the queue.

        Not one that SLURM ends: a cancelled job would come back.
        """
        state = ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%T"])
        return (state or "").strip() == "RUNNING" and ask(["scontrol", "requeue", self.job]) is not None


@contextmanager
def ray_of(allocation: Allocation, shared: str = "") -> Iterator[Mapping[str, str]]:
    """Start Ray on all nodes during the block.

    Yields the variables with which a process connects. Raises `RayNotStarted`, and `UnusableStorage` if a node does not
    see the folder `shared`.
    """
    variables = {
        # Other users of a node reach its ports.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    with ExitStack() as stack:
        mark = stack.enter_context(_marked(shared)) if shared and len(allocation.nodes) > 1 else ""
        words = [sys.executable, "-m", NODE, f"{allocation.job}-{allocation.restarts}", mark]
        head = stack.enter_context(_Nodes([*words, "head", own_address(allocation.nodes)], variables))
        head.wait(1, NODES_WITHIN_S)
        if len(allocation.nodes) > 1:
            others = stack.enter_context(_Nodes([*_srun(allocation), *words, "worker", head.address], variables))
            others.wait(len(allocation.nodes) - 1, NODES_WITHIN_S)
            others.leave()
            stack.callback(ask, ["scancel", "--signal=KILL", f"{allocation.job}.{others.step}"])
        log.info("Ray runs on %s", ", ".join(allocation.nodes))
        yield {**variables, "RAY_ADDRESS": head.address}


def own_address(nodes: Sequence[str]) -> str:
    """Return the address of this machine by which the other nodes reach it."""
    if len(nodes) == 1:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((nodes[1], 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RayNotStarted(
            f"Ray cannot start on the nodes of this job: {nodes[0]} finds no way to {nodes[1]} ({error}). "
            "Nodes have to resolve each other's names.",
            reason=str(error),
        ) from error


class _Nodes:
    """Processes that start Ray, on this node or by srun."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        # In a group of its own: srun has a second process, which ends the step when the first one has ended.
        self._process = subprocess.Popen(  # noqa: S603 - words of this file
            words, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._ready: list[str] = []
        self._said: list[str] = []
        self._has_ended = threading.Event()
        self.step, self.address = "", ""
        begin(threading.Thread(target=self._read, name="forebay-nodes", daemon=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def wait(self, count: int, limit_s: float) -> None:
        """Wait until Ray runs on `count` nodes."""
        end = time.monotonic() + limit_s
        while len(self._ready) < count:
            if self._has_ended.wait(0.05) or time.monotonic() > end:
                raise self._failed(count, limit_s)

    def leave(self) -> None:
        """Leave the nodes alone.

        A SIGTERM to all processes of the job would make srun kill Ray, in the seconds in which a checkpoint is saved.
        """
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == READY:
                self.step, name, self.address = rest.split(" ")
                self._ready.append(name)
            else:
                self._said.append(line.strip())
        self._has_ended.set()

    def _failed(self, count: int, limit_s: float) -> ForebayError:
        said = " ".join(self._said[-20:])
        if "does not see" in said:
            return UnusableStorage(said)
        late = "" if self._has_ended.is_set() else f" within {limit_s:g} s"
        ready = f"{len(self._ready)} of {count} nodes have it{': ' + ', '.join(self._ready) if self._ready else ''}"
        return RayNotStarted(
            f"Ray did not start on the nodes of this job{late}: {ready}. {said or 'Nothing was said.'} The log of "
            "this job has what srun says. Forebay and Ray have to be installed under the same path on all nodes.",
            reason=said,
        )


def _srun(allocation: Allocation) -> list[str]:
    """Words that start a process on each node but the first."""
    count = len(allocation.nodes) - 1
    words = ["srun", "--overlap", "--relative=1", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    words += ["--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--input=none", "--unbuffered"]
    return words if allocation.cpus is None else [*words, f"--cpus-per-task={allocation.cpus}"]


@contextmanager
def _marked(folder: str) -> Iterator[str]:
    """Yield the path of a new file in a folder."""
    mark = Path(folder) / f".forebay-shared-{secrets.token_hex(8)}"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise UnusableStorage(
            f"{folder} cannot be written on the node {socket.gethostname()} ({error}). Give a folder of the file "
            "system that all nodes share."
        ) from error
    try:
        yield str(mark)
    finally:
        mark.unlink(missing_ok=True)


def _run(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the command, and pass a SIGTERM to it.

    Returns `ExitCode.TERMINATED` if it has ended early for that.
    """
    with subprocess.Popen(words, env={**os.environ, **variables}) as process:  # noqa: S603 - the user's own command
        with Termination(lambda: process.send_signal(signal.SIGTERM)) as term:
            code = process.wait()
        return ExitCode.TERMINATED if term.is_asked and code != 0 else code


def main(words: Sequence[str]) -> int:
    """Run the command of `words`. Returns its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s forebay: %(message)s")
    try:
        divider = words.index("--")
        shared = words[1] if words[0] == "--shared" and divider == 2 else ""
    except (ValueError, IndexError):
        log.error(  # noqa: TRY400 - the error of a user
            "write: python -m forebay.fleet.slurm.allocation [--shared FOLDER] -- COMMAND..."
        )
        return ExitCode.USAGE
    try:
        allocation = Allocation.of(os.environ)
        with ray_of(allocation, shared) as variables:
            code = _run(words[divider + 1 :], variables)
    except ForebayError as error:
        log.error("%s", error)  # noqa: TRY400 - the error of a user
        return error.exit_status
    if code == ExitCode.TERMINATED:
        is_back = allocation.requeue()
        log.info("the job was asked to end%s", ", and goes back into the queue" if is_back else "")
    return code if code >= 0 else 128 - code  # of a signal, as a shell says it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
