"""A run that begins where another one stands: the exchange of checkpoints of population based training.

A trial's checkpoint is a name and a step, not a copy: states may be large, and most checkpoints are never read. The
commit it means is held in the run's own folder until `NUM_HELD` later ones are, however fast the run commits
meanwhile. Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv 1711.09846.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from forebay.checkpoint.buffer import ReusableBuffer
from forebay.checkpoint.checkpoint import Checkpoint, Encoder, decode, found_in, newest_of
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import CorruptCheckpoint
from forebay.checkpoint.files import CheckpointFiles
from forebay.errors import CorruptFile, InvalidOption
from forebay.runs.result import Result, save_result
from forebay.storage.atomic import write_atomically
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below, resolve
from forebay.storage.write_failed import write_failed
from forebay.train.state.hyperparameters import left_out
from forebay.train.state.snapshot import Snapshot

CHECKPOINTS, HELD = "checkpoints", "held"
NUM_HELD = 3
ORIGIN_FILE = "branch.json"
LOOK_S = 0.02

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that a branch began from, by its folder, and the step it had then."""

    run: str
    step: int


def newest_stored(run: str) -> int | None:
    """Step of the newest commit in storage of the run in folder `run`; None before the first one."""
    return next(iter(_files(run, CHECKPOINTS).complete_steps()), None)


def hold(run: str, at_least: int = 0, wait_s: float = 0.0, flush: Callable[[], None] = lambda: None) -> int | None:
    """Have a whole commit in storage of the run in folder `run` stay there for branches; its step, None without any.

    It is the first of `at_least` that step, which is waited for, `wait_s` seconds at most; else the newest. An epoch is
    told before the commit that ends it is written, so whoever has heard of an epoch lets the run go on, and says
    `at_least` its step. `flush` brings to storage what a run has in memory. Raises `WriteFailed`.
    """
    deadline = time.monotonic() + wait_s
    flush()
    while (newest_stored(run) or 0) < at_least and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        flush()
    files, held = _files(run, CHECKPOINTS), _files(run, HELD)
    steps = files.complete_steps()
    for step in [*(step for step in reversed(steps) if step >= at_least > 0), *steps]:
        if step in held.complete_steps():
            return step
        try:
            encoded = files.read(step)
            encoded.verify()
        except CorruptCheckpoint:  # the run has deleted it meanwhile, having written a newer one
            continue
        try:
            held.write(encoded)
        except OSError as error:
            raise write_failed("a checkpoint", held.uri, error) from redacted(error)
        return step
    return None


def branch(source: str, step: int, target: str) -> int:
    """Let the run in folder `target`, which has no commit yet, go on from the commit of `step` of the one in `source`.

    Both are paths, or URIs on any storage. Model, moments, schedules, place in the data and epochs are those of the
    commit; hyperparameters of optimizers and schedulers are left out, so that those of the target's job hold. A commit
    that is no longer there is replaced by the newest of its run, with a log line: the answer is the step of the branch.
    Cut short, it can be done again: the seal of the commit comes last.

    Raises:
        InvalidOption: `target` has commits, or `source` has none.
        CorruptFile: The commit is torn.
        WriteFailed: Storage does not take it.
    """
    if (there := newest_stored(target)) is not None:
        raise InvalidOption(
            f"the run in {resolve(target).uri} has a commit of step {there}, so it cannot begin as a branch of "
            f"{resolve(source).uri}. Give the branch a new name.",
            step=there,
        )
    commit = _commit_of(source, step)
    snapshot = Snapshot.from_checkpoint(commit)
    objects = {name: left_out(state) for name, state in snapshot.objects.items()}
    encoded = Encoder().encode(replace(snapshot, objects=objects).to_checkpoint(commit.world), ReusableBuffer())
    origin = Origin(run=resolve(source).uri, step=commit.step)
    try:
        write_atomically(below(target, ORIGIN_FILE), json.dumps(asdict(origin)).encode())
        # Known to the target's driver from the start, these epochs are no news to its callbacks.
        save_result(_result_so_far(commit, snapshot, target))
        _files(target, CHECKPOINTS).write(encoded)
    except OSError as error:
        raise write_failed("the branch", resolve(target).uri, error) from redacted(error)
    return commit.step


def origin_of(run: str) -> Origin | None:
    """Where the run in folder `run` branched off; None for one that began at step 0, or has not begun."""
    place = resolve(below(run, ORIGIN_FILE))
    if newest_stored(run) is None:
        return None
    try:
        with place.fs.open_input_stream(place.path) as stream:
            return Origin(**json.loads(stream.read()))
    except FileNotFoundError:
        return None


def _commit_of(run: str, step: int) -> Checkpoint:
    sources = [_files(run, folder) for folder in (HELD, CHECKPOINTS)]
    found = f"{resolve(run).uri} has no commit of step {step}"
    for files in sources:
        if step in files.steps():
            try:
                return decode(files.read(step), files.uri_of(step))
            except CorruptCheckpoint as error:
                found = f"the commit in {files.uri_of(step)} is corrupt ({error})"
    # Where the seal is gone, the run has just deleted it.
    if any(step in files.complete_steps() for files in sources):
        raise CorruptFile(f"{found}. Branch from another step, or from another run.", run=run, step=step)
    newest = newest_of(each for files in sources for each in found_in(files))
    if newest is None:
        raise InvalidOption(
            f"{found}, nor is there any other to branch from. Look whether the run's folder was moved or deleted.",
            run=run,
            step=step,
        )
    log.warning("The commit of step %d in %s is gone; branching from step %d.", step, resolve(run).uri, newest.step)
    return newest


def _result_so_far(commit: Checkpoint, snapshot: Snapshot, target: str) -> Result:
    uri = resolve(target).uri
    name = uri.partition("?")[0].rpartition("/")[2]
    epochs = tuple(snapshot.ended)
    return Result(name=name, path=uri, plan_id=commit.cursor.plan_id, num_epochs=len(epochs), epochs=epochs)


def _files(run: str, folder: str) -> CheckpointFiles:
    return CheckpointFiles(CheckpointConfig(uri=below(run, folder), keep_last=NUM_HELD))
