"""Names of checkpoints in storage, and of their files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forebay.training.checkpoint.encoded import Metadata, part_facts, shard_sizes

STEP_FORM = re.compile(r"(?:attempt-(\d{6,})-)?step-(\d{9,})")
"""Form of the names of the folders of checkpoints."""


def shard_file(number: int) -> str:
    """File name of a shard in a checkpoint's folder."""
    return f"shard-{number:05d}.pt"


def part_file(number: int) -> str:
    """File name of a part in a checkpoint's folder."""
    return f"part-{number:05d}"


def file_names(metadata: Metadata) -> dict[int, str]:
    """File name of every shard, by number.

    Raises `CorruptCheckpoint`.
    """
    parts = part_facts(metadata)
    return {number: (part_file if number in parts else shard_file)(number) for number in shard_sizes(metadata)}


class SavedStep(NamedTuple):
    """Name of a checkpoint in storage.

    A later attempt at the run comes after every step of an earlier one.
    """

    attempt: int
    step: int


def lineage(names: Sequence[SavedStep]) -> list[SavedStep]:
    """Names that led to the newest, newest first.

    An attempt continues below its own first step.

    >>> lineage([SavedStep(2, 25), SavedStep(1, 30), SavedStep(1, 20)])
    [SavedStep(attempt=2, step=25), SavedStep(attempt=1, step=20)]
    """
    found: list[SavedStep] = []
    for name in sorted(names, reverse=True):
        if not found or name.step < found[-1].step:
            found.append(name)
    return found


def saved_step(title: str) -> SavedStep:
    """Checkpoint of a folder with the name `title`.

    The name must be of the form `STEP_FORM`.
    """
    found = STEP_FORM.fullmatch(title)
    assert found is not None, title
    return SavedStep(int(found[1] or 1), int(found[2]))


def title_of(name: SavedStep) -> str:
    """Name of the folder of a checkpoint."""
    return f"step-{name.step:09d}" if name.attempt == 1 else f"attempt-{name.attempt:06d}-step-{name.step:09d}"


def checkpoint_names(names: Iterable[object]) -> tuple[str, ...]:
    """Names of checkpoint folders, as a claim holds them.

    Raises `ValueError` for any other name.
    """
    found = tuple(map(str, names))
    if odd := [name for name in found if not STEP_FORM.fullmatch(name)]:
        raise ValueError(f"{odd[0]!r:.100} is not the name of a checkpoint")
    return found
