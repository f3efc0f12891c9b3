"""Runs that start from another run's checkpoint.

The exchange step of population-based training.

A trial's checkpoint is a name and a step, not a copy: states can be large, and most checkpoints are never read. The
checkpoint stays in the run's own folder until `NUM_PINNED` later ones are pinned, however fast the run saves. Source:
Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv 1711.09846.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from forebay.errors import CorruptFile, InvalidOption
from forebay.runtime.declared_types import require_types
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import to_json
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Checkpoint, Encoder, decode, found_in, newest_of
from forebay.training.checkpoint.config import FOLDER as CHECKPOINTS
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, readable_checkpoints
from forebay.training.runs.result import Result, save_result
from forebay.training.runs.run_folder import RunFolder
from forebay.training.state.snapshot import Snapshot
from forebay.training.state.stateful import left_out

PINNED = "pinned"
NUM_PINNED = 3
ORIGIN_FILE = "fork.json"
VERSION = 1
LOOK_S = 0.02

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source run and checkpoint step of a fork."""

    run: str
    step: int


def newest_stored_step(run: str) -> int | None:
    """Return the step of a run's newest stored checkpoint.

    None before the first one.
    """
    return next(iter(readable_checkpoints(run).complete_steps()), None)


def pin(run: str, at_least: int = 0, wait_s: float = 0.0, flush: Callable[[], None] = lambda: None) -> int | None:
    """Pin a complete checkpoint of a run, for forks.

    Returns its step, or None without any. `run` is the run's folder in storage.

    Takes the first checkpoint of step `at_least` or later and waits at most `wait_s` seconds for it. If none arrives,
    takes the newest. An epoch is reported before its last checkpoint is saved. So a caller that has received an epoch
    resumes the run and passes its step as `at_least`. `flush` writes checkpoints in memory to storage. Raises
    `WriteFailed`.
    """
    deadline = time.monotonic() + wait_s
    flush()
    while (newest_stored_step(run) or 0) < at_least and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        flush()
    files, pinned = readable_checkpoints(run), _files(run, PINNED)
    steps = files.complete_steps()
    for step in [*(step for step in reversed(steps) if step >= at_least > 0), *steps]:
        if step in pinned.complete_steps():
            return step
        try:
            encoded = files.read(step)
            encoded.verify()
        except CorruptCheckpoint:  # the run has saved a newer one and deleted it
            continue
        try:
            pinned.write(encoded)
        except OSError as error:
            raise write_failed("a checkpoint", pinned.uri, error) from redacted(error)
        return step
    return None


def fork(source: str, step: int, target: str) -> int:
    """Start a new run from the checkpoint of another run.

    `target` is the new run's folder, without a checkpoint yet. `source` is the folder of the other run, `step` the step
    of its checkpoint.

    Both are paths, or URIs on any storage. Model, moments, schedules, data position and epochs come from the
    checkpoint. Hyperparameters of optimizers and schedulers are left out, so that the target's job sets them. A
    deleted checkpoint is replaced by the newest one of its run, with a log line. Returns the step of the fork. An
    interrupted call can be repeated: the seal of the checkpoint is written last.

    Raises:
        InvalidOption: `target` has checkpoints, or `source` has none.
        CorruptFile: The checkpoint is corrupt.
        WriteFailed: Storage does not accept it.
    """
    # Of any attempt: what is there was not written for this fork.
    if (there := next(iter(_files(target, CHECKPOINTS).complete_steps()), None)) is not None:
        raise InvalidOption(
            f"the run in {resolve(target).uri} has a checkpoint of step {there}, so it cannot start as a fork of "
            f"{resolve(source).uri}. Give the fork a new name.",
            step=there,
        )
    commit = _load_checkpoint(source, step)
    snapshot = Snapshot.from_checkpoint(commit)
    objects = {name: left_out(state) for name, state in snapshot.objects.items()}
    encoded = Encoder().encode(replace(snapshot, objects=objects).to_checkpoint(commit.world), ReusableBuffer())
    origin = Origin(run=resolve(source).uri, step=commit.step)
    try:
        RunFolder.at(target).write(ORIGIN_FILE, to_json({"version": VERSION, **asdict(origin)}))
        # The target's driver knows these epochs from the start and does not report them to its callbacks.
        save_result(_result_so_far(commit, snapshot, target))
        _files(target, CHECKPOINTS).write(encoded)
    except OSError as error:
        raise write_failed("the fork", resolve(target).uri, error) from redacted(error)
    return commit.step


def origin_of(run: str) -> Origin | None:
    """Return the origin of the run in folder `run`.

    None for a run that started at step 0 or has not started.
    """
    if newest_stored_step(run) is None:
        return None
    origin: Origin | None = RunFolder.at(run).load(ORIGIN_FILE, lambda facts: require_types(Origin(**facts)), VERSION)
    return origin


def _load_checkpoint(run: str, step: int) -> Checkpoint:
    sources = [_files(run, PINNED), readable_checkpoints(run)]
    found = f"{resolve(run).uri} has no checkpoint of step {step}"
    for files in sources:
        if step in files.steps():
            try:
                return decode(files.read(step), files.uri_of(step))
            except CorruptCheckpoint as error:
                found = f"the checkpoint in {files.uri_of(step)} is corrupt ({error})"
    # Without a seal, the run has just deleted it.
    if any(step in files.complete_steps() for files in sources):
        raise CorruptFile(f"{found}. Fork from another step, or from another run.", run=run, step=step)
    newest = newest_of(each for files in sources for each in found_in(files))
    if newest is None:
        raise InvalidOption(
            f"{found}, and no other one. Check whether the run's folder was moved or deleted.",
            run=run,
            step=step,
        )
    log.warning(
        "The checkpoint of step %d in %s was deleted; forking from step %d.", step, resolve(run).uri, newest.step
    )
    return newest


def _result_so_far(commit: Checkpoint, snapshot: Snapshot, target: str) -> Result:
    folder, epochs = RunFolder.at(target), tuple(snapshot.ended)
    return Result(
        name=folder.name,
        path=folder.uri,
        plan_id=commit.cursor.plan_id,
        num_epochs=len(epochs),
        epochs=epochs,
        statistics=snapshot.statistics,
    )


def _files(run: str, folder: str) -> CheckpointFiles:
    return CheckpointFiles(CheckpointConfig(uri=below(run, folder), keep_last=NUM_PINNED))
