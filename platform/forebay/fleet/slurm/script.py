"""Batch script of a job: what it asks of SLURM, and what runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from forebay.fleet.spec.fields import fault
from forebay.fleet.spec.job_spec import JobSpec, Slurm
from forebay.fleet.spec.quantity import nbytes, quantity

MIB = 2**20
ALLOCATION = "forebay.fleet.slurm.allocation"


def batch_script(
    options: Sequence[str], variables: Mapping[str, str], words: Sequence[str], *, python: str, shared: str = ""
) -> str:
    """Return a batch script that runs a command with Ray on its nodes.

    Each option has a line, and each part of the command is quoted: no shell reads a value. All nodes must see the
    folder `shared`.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    share = ["--shared", shared] if shared else []
    run = shlex.join([python, "-m", ALLOCATION, *share, "--", *words])
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), *exports, f"exec {run}"]
    return "\n".join(lines) + "\n"


def options_of(spec: JobSpec, *, name: str, comment: str) -> Iterator[str]:
    """Yield the options of sbatch for a job.

    `name` is the same for all submissions of a job: of one name and user, SLURM runs one job at a time. Raises
    `InvalidJobSpec` for what no SLURM cluster can give.
    """
    slurm = spec.launch.slurm or Slurm()
    _require_possible(spec)
    yield f"--job-name={name}"
    yield f"--comment={comment}"
    yield "--dependency=singleton"
    yield from _resources(spec, slurm)
    for option in ("partition", "account", "qos", "constraint", "reservation"):
        if (value := getattr(slurm, option)) is not None:
            yield f"--{option}={value}"
    if slurm.time is not None:
        yield f"--time={time_text(slurm.time)}"
    if slurm.exclusive:
        yield "--exclusive"
    # B: to the batch step alone. Sent to all processes, it would end Ray before the checkpoint.
    yield f"--signal=B:TERM@{math.ceil(slurm.stop_before)}"
    yield "--requeue"
    yield "--open-mode=append"


def time_text(seconds: float) -> str:
    """Write a time as SLURM does: days, hours, minutes, seconds.

    >>> time_text(90_061)
    '1-01:01:01'
    """
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02d}:{minutes:02d}:{rest:02d}"


def _resources(spec: JobSpec, slurm: Slurm) -> Iterator[str]:
    """Yield what the largest task needs of a node."""
    per_node = [math.ceil(task.workers.largest / slurm.most_nodes) for task in spec.task]
    for number, (task, each) in enumerate(zip(spec.task, per_node, strict=True)):
        if task.workers.min > each * slurm.fewest_nodes:
            nodes = f"{math.ceil(task.workers.min / each)}-{slurm.most_nodes}"
            raise fault(
                f"min={task.workers.min} workers do not fit on {slurm.fewest_nodes} nodes with {each} workers each. "
                f"Give at least nodes = {nodes!r} in [launch.slurm], or a smaller min.",
                *("task", number, "workers", "min"),
            )
    tasks = list(zip((task.workers for task in spec.task), per_node, strict=True))
    yield f"--nodes={slurm.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={max(math.ceil(quantity(workers.cpu) * each) for workers, each in tasks)}"
    memory = max(nbytes(workers.memory) * each if workers.memory else 0 for workers, each in tasks)
    if memory:
        yield f"--mem={math.ceil(memory / MIB)}M"
    gpus = max(workers.gpus * each for workers, each in tasks)
    if slurm.gres is not None:
        yield f"--gres={slurm.gres}"
    elif gpus:
        yield f"--gpus-per-node={gpus}"


def _require_possible(spec: JobSpec) -> None:
    launch = spec.launch
    for name, remedy in (
        ("image", "SLURM starts no containers here: activate an environment before you submit"),
        ("mounts", "SLURM mounts nothing: give paths of the shared file system in args or env"),
        ("labels", "SLURM has no labels: remove them"),
    ):
        if getattr(launch, name):
            raise fault(f"it is for pods of Kubernetes. {remedy}, or choose --backend fleet.", "launch", name)
