"""Attempts at one run, in processes that are killed, stopped, raced and cut off from their storage.

Their state is the list of the steps that shaped it, so that a step that is lost, repeated or out of order shows. They
train nothing: claims, heartbeats, checkpoints and the result are as in a run, and take milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak import mounts
from tests.soak.case import CaseOutcome, fault
from tests.soak.siege import ENDED_CODE, Siege, code_of, hurry

from forebay.errors import ForebayError
from forebay.training.checkpoint.checkpoint import found_in
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint, EncodedCheckpoint, verify_metadata
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.uploader import Uploader
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence as fences
from forebay.training.runs.attempts import start as starts
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles

LIMIT_S = 40.0
"""Limit of a case, of whose attempts each takes a fraction of a second."""
DISK_BYTES = 1 << 20


@dataclass(frozen=True)
class Toy:
    """A run of `steps` steps. With `machines`, no process knows of the end of another, as on two machines."""

    run: str
    log: Path
    steps: int
    every: int
    step_s: float
    takeover_s: float
    uploads: bool
    machines: bool

    def note(self, what: str, value: object = "") -> None:
        """Append a line to the log of all attempts. One write: they share the file."""
        with self.log.open("ab", buffering=0) as log:
            log.write(f"{json.dumps([time.monotonic(), os.getpid(), what, value])}\n".encode())

    def noted(self, what: str) -> list[tuple[float, int, object]]:
        """Time, process and value of each line about `what`."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [(at, pid, value) for at, pid, kind, value in lines if kind == what]


def attempt(toy: Toy) -> None:
    """One start of the run, as a driver makes it. Ends the process with its exit code."""
    hurry(machines=toy.machines)
    try:
        _train(toy)
    except ForebayError as error:
        toy.note("error", f"{type(error).__name__}: {error}")
        sys.exit(code_of(error))


def _train(toy: Toy) -> None:
    policy = StartPolicy(follow=True)
    object.__setattr__(policy, "takeover_s", toy.takeover_s)  # less than users may give
    try:
        fence = starts.start_attempt(toy.run, policy, lambda _: None)
    except OSError as error:
        raise fences.write_failed("the claim", toy.run, error) from None
    if not isinstance(fence, Fence):
        # As `Run`: the result of a finished run is returned, and a failed one is started again.
        sys.exit(0 if fence.end.how == "finished" else ENDED_CODE)
    toy.note("claimed", fence.number)
    end = AttemptEnd(how="failed", why="interrupted")
    try:
        fence.watch()
        _steps(toy, fence)
        end = AttemptEnd(how="finished")
    except (OSError, ForebayError) as error:
        end = AttemptEnd(how="failed", why=str(error))
        if isinstance(error, OSError):
            raise fences.write_failed("the run", toy.run, error) from None
        raise
    finally:
        fence.release(end)
        toy.note("released", fence.number)


def _steps(toy: Toy, fence: Fence) -> None:
    config = CheckpointConfig(
        uri=f"{toy.run}/checkpoints",
        attempt=fence.number,
        next_claim=fence.next_claim_uri,
        own_claim=fence.claim_uri,
        token=fence.token,
        restorable=fence.restorable,
        storage_every_s=0.02,
    )
    files, uploader = CheckpointFiles(config), Uploader(config) if toy.uploads else None
    done = _restored(files)
    toy.note("restored", [fence.number, len(done)])
    for step in range(len(done) + 1, toy.steps + 1):
        time.sleep(toy.step_s)
        fence.check()
        done.append([fence.number or 0, step])
        if step % toy.every == 0 or step == toy.steps:
            encoded = EncodedCheckpoint.build({"step": step}, {0: json.dumps(done).encode()})
            if uploader is None:
                files.with_claim(lambda encoded=encoded: files.write(encoded))
                toy.note("saved", [fence.number, step])
            else:
                uploader.offer(encoded)
    if uploader is not None:
        uploader.flush()
        toy.note("saved", [fence.number, toy.steps])
        uploader.close()
    fence.confirm()
    earlier = fence.finish(1, json.dumps(done))
    toy.note("finished", json.loads(earlier) if earlier is not None else done)


def _restored(files: CheckpointFiles) -> list[list[int]]:
    """The newest complete state, as `newest_of` finds it."""
    for each in sorted(found_in(files), reverse=True):
        try:
            read = each.read(None)
            verify_metadata(read.metadata)
            return list(json.loads(bytes(read.shards[0])))
        except (CorruptCheckpoint, ValueError):
            continue
    return []


@fault(
    "attempts-besieged",
    expected="equal: one result, each step once; an attempt ends as fenced, or with an error that may be tried again",
    deadline_s=2 * LIMIT_S,
    share=4.0,
    quick=2,
)
def attempts_besieged(rng: random.Random, folder: Path) -> CaseOutcome:
    share = folder / "share"
    share.mkdir()
    if not mounts.problem():
        mounts.mount_tmpfs(share, DISK_BYTES)
    toy = Toy(
        run=str(share / "run"),
        log=folder / "log",
        steps=rng.randint(8, 40),
        every=rng.randint(1, 4),
        step_s=rng.choice([0.0, 0.005, 0.02]),
        takeover_s=rng.choice([0.3, 0.6]),
        uploads=rng.random() < 0.5,
        machines=rng.random() < 0.5,
    )
    siege = Siege(random.Random(rng.random()), lambda: attempt(toy), Path(toy.run), share, toy.takeover_s)
    try:
        siege.endure(rng.randint(2, 10), 0.4, LIMIT_S)
        check_history(toy, siege)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_tale(toy)}") from None
    finally:
        siege.close()
    return CaseOutcome("equal", faults=siege.struck)


def check_history(toy: Toy, siege: Siege) -> None:
    """Assert one result of each step once, and that nothing that was saved is forgotten without a reason."""
    results = [json.dumps(value) for _, _, value in toy.noted("finished")]
    recorded = AttemptFiles(toy.run).finished(1)
    assert recorded is not None, "no result is recorded"
    for result in [*results, recorded.decode()]:
        done = json.loads(result)
        assert [step for _, step in done] == list(range(1, toy.steps + 1)), f"steps are lost or repeated: {result}"
        attempts = [number for number, _ in done]
        assert attempts == sorted(attempts), f"an older attempt continued a newer one: {result}"
    if siege.forgets:
        return
    assert set(results) <= {json.dumps(json.loads(recorded))}, "several results"
    claimed = {number: at for at, _, number in toy.noted("claimed")}
    for _, _, value in toy.noted("restored"):
        number, step = value  # type: ignore[misc]
        saved = [each for at, _, (other, each) in toy.noted("saved") if other < number and at < claimed[number]]  # type: ignore[misc]
        assert not saved or step >= max(saved), f"attempt {number} continues at {step}, saved was {max(saved)}"


def _tale(toy: Toy) -> str:
    return "\n".join(toy.log.read_text().splitlines()[-40:]) if toy.log.exists() else ""
