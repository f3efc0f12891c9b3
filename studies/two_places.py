"""One job at two places: the first is cut off in an epoch, the job goes on at the second, and the first is
fenced when it comes back. Compared with an undisturbed run: same rows, same losses.

python studies/two_places.py --folder /tmp/two-places
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import forebay as fb
from forebay.deploy.client.backend import LocalBackend
from forebay.deploy.client.places import wait_at_places
from forebay.deploy.client.submission import JobFiles, SubmissionEnd
from forebay.testing.data.click_log import write_click_log

JOBS = Path(__file__).parents[1] / "jobs"
ENDS_WITHIN_S = 600.0


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
    train = fb.Task(name="train", run="train_ctr.py", args=args)
    place = fb.Place(unreachable=fb.Unreachable(after=silent_s))
    return fb.JobSpec(name=name, storage=str(folder / "runs"), task=(train,), place=place)


def move(folder: Path) -> Moved:
    """Run the job undisturbed, and once more with its first place cut off after the second checkpoint."""
    write_click_log(folder / "clicks", rows=60_000)
    undisturbed = fb.submit(demo(folder, "undisturbed"), folder=JOBS).wait(ENDS_WITHIN_S)
    job = fb.submit(demo(folder, "moved"), folder=JOBS)
    files = JobFiles(storage=job.submission.spec.storage, name="moved")
    deadline = time.monotonic() + ENDS_WITHIN_S
    checkpoints = Path(files.folder, "checkpoints")
    while len(list(checkpoints.glob("step-*/checkpoint.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    claim = files.started(1)
    assert claim is not None
    os.killpg(claim.pid, signal.SIGSTOP)  # as a machine that nobody reaches: it may come back
    try:
        result = wait_at_places(job, [LocalBackend(), LocalBackend()], silent_s=2.0)
    finally:
        os.killpg(claim.pid, signal.SIGCONT)
    while (first := files.ended(1)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert undisturbed is not None
    assert result is not None
    assert first is not None
    return Moved(undisturbed=undisturbed, moved=result, first=first, attempts=job.status().attempt)


def main() -> None:
    """Print both results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("two-places"))
    moved = move(parser.parse_args().folder.absolute())
    for name, result in (("undisturbed", moved.undisturbed), ("moved", moved.moved)):
        losses = ", ".join(f"{epoch.metrics['loss']:.6f}" for epoch in result.epochs)
        print(f"{name}: {sum(epoch.rows for epoch in result.epochs)} rows, losses {losses}")
    print(f"the first place: {moved.first.how}; attempts: {moved.attempts}")


if __name__ == "__main__":
    main()
