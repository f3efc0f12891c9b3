"""One job at two places: the first is cut off in an epoch, the job goes on at the second, and the first is
fenced when it comes back. Compared with an undisturbed run: same rows, same losses.

python studies/two_places.py --folder /tmp/two-places          # two processes of this machine
python studies/two_places.py --folder /tmp/two-places --ray    # two Ray clusters of one node each
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.client.backend import JobBackend, LocalBackend
from forebay.fleet.client.ray_backend import RayBackend
from forebay.fleet.client.submission import JobFiles, SubmissionEnd
from forebay.testing.data.click_log import write_click_log
from forebay.testing.drivers.ray_processes import RAY, NodeProcesses, head_options

JOBS = Path(__file__).parents[1] / "jobs"
ENDS_WITHIN_S = 600.0
SILENT_S = 2.0
"""Time for which the first place is silent before the job is started at the second."""


class StudyPlace(Protocol):
    """Place whose processes can be suspended, as a machine that cannot be reached: it may come back."""

    backend: JobBackend

    def signal(self, number: int, files: JobFiles) -> None:
        """Send a signal to all processes of the place, which runs the first submission of `files`."""


class LocalPlace:
    """This machine: its processes are the job's."""

    def __init__(self) -> None:
        self.backend: JobBackend = LocalBackend()

    def signal(self, number: int, files: JobFiles) -> None:
        claim = files.started(1)
        assert claim is not None
        os.killpg(claim.pid, number)


class RayPlace:
    """Ray cluster of one node, whose processes are all of its daemons and workers."""

    def __init__(self, processes: NodeProcesses, address: str) -> None:
        self.backend: JobBackend = RayBackend(address)
        self._processes = processes

    def signal(self, number: int, files: JobFiles) -> None:  # noqa: ARG002 - of the protocol
        self._processes.signal(number)


@contextmanager
def ray_place(folder: Path) -> Iterator[RayPlace]:
    """Start a Ray cluster with 4 logical CPUs that accepts jobs, and end it."""
    folder.mkdir(parents=True)
    ports = head_options()
    options = [f"--{name}={port}" for name, port in ports.items()]
    # A job finds its cluster by the newest one of the temporary folder, whose path has to be short for its sockets.
    temp = tempfile.mkdtemp(prefix="fb-")
    options += ["--num-cpus=4", "--disable-usage-stats", f"--temp-dir={temp}/ray"]
    # Ray 2.60 turns token authentication on when it starts a cluster, and leaves it off when it submits to one.
    environment = {"RAY_TMPDIR": temp, "RAY_AUTH_MODE": "disabled"}
    with (folder / "ray.log").open("wb") as log:
        processes = NodeProcesses([RAY, "start", "--head", "--block", *options], environment, log)
    try:
        yield RayPlace(processes, f"http://127.0.0.1:{ports['dashboard-port']}")
    finally:
        processes.kill()
        shutil.rmtree(temp, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Results of the undisturbed and of the moved job, the end of its first process, and its number of attempts."""

    undisturbed: fb.Result
    moved: fb.Result
    first: SubmissionEnd
    attempts: int


def demo(folder: Path, name: str, silent_s: float = 30.0) -> fb.JobSpec:
    """Job of three epochs over a click log of 60,000 rows, whose silent place is given up after `silent_s` seconds."""
    args: dict[str, str | int] = {"epochs": 3, "global_batch": 256, "checkpoint_every": 20, "workers": 1}
    args |= {"data": str(folder / "clicks"), "cache": str(folder / "cache")}
    train = fb.fleet.Task(name="train", run="train_ctr.py", args=args)
    scheduling = fb.fleet.Scheduling(unreachable=fb.fleet.Unreachable(after=silent_s))
    return fb.JobSpec(name=name, storage=str(folder / "runs"), task=(train,), scheduling=scheduling)


def move(folder: Path, places: tuple[StudyPlace, StudyPlace]) -> Moved:
    """Run the job undisturbed on this machine, and once more with its first place cut off after the first
    checkpoint.
    """
    write_click_log(folder / "clicks", rows=60_000)
    undisturbed = fb.submit(demo(folder, "undisturbed"), folder=JOBS).wait(ENDS_WITHIN_S)
    job = _submitted(demo(folder, "moved"), places[0].backend)
    files = JobFiles(storage=job.submission.spec.storage, name="moved")
    deadline = time.monotonic() + ENDS_WITHIN_S
    checkpoints = Path(files.folder, "checkpoints")
    while len(list(checkpoints.glob("step-*/checkpoint.json"))) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    places[0].signal(signal.SIGSTOP, files)
    try:
        result = _end_at(places[1].backend, job, files)
    finally:
        places[0].signal(signal.SIGCONT, files)
    while (first := files.ended(1)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert undisturbed is not None
    assert result is not None
    assert first is not None
    return Moved(undisturbed=undisturbed, moved=result, first=first, attempts=job.status().attempt)


def _end_at(backend: JobBackend, job: fb.fleet.SubmittedJob, files: JobFiles) -> fb.Result | None:
    """Start the job at a second place when the first is silent, and wait for the end.

    Its driver there follows the silent one, and takes over after `scheduling.unreachable.after`.
    """
    deadline = time.monotonic() + ENDS_WITHIN_S
    while job.status().state != "unreachable" and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(SILENT_S)
    earlier = job.submission
    moved = replace(
        earlier, number=earlier.number + 1, backend=backend.name, address=backend.address, token=secrets.token_hex(8)
    )
    assert files.create(moved)
    backend.start(moved)
    return job.wait(ENDS_WITHIN_S)


def _submitted(spec: fb.JobSpec, backend: JobBackend) -> fb.fleet.SubmittedJob:
    """Submit. A Ray cluster that has just started accepts no jobs for some seconds."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return fb.submit(spec, backend.name, address=backend.address, folder=JOBS)
        except InvalidOption:
            if time.monotonic() > give_up:
                raise
            time.sleep(1)


def main() -> None:
    """Print both results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("two-places"))
    parser.add_argument("--ray", action="store_true", help="the places are two Ray clusters")
    options = parser.parse_args()
    folder = options.folder.absolute()
    with ExitStack() as clusters:
        places: tuple[StudyPlace, StudyPlace] = (LocalPlace(), LocalPlace())
        if options.ray:
            first, second = (clusters.enter_context(ray_place(folder / name)) for name in ("first", "second"))
            places = (first, second)
        moved = move(folder, places)
    for name, result in (("undisturbed", moved.undisturbed), ("moved", moved.moved)):
        losses = ", ".join(f"{epoch.metrics['loss']:.6f}" for epoch in result.epochs)
        print(f"{name}: {sum(epoch.rows for epoch in result.epochs)} rows, losses {losses}")
    print(f"the first place: {moved.first.how}; attempts: {moved.attempts}")


if __name__ == "__main__":
    main()
