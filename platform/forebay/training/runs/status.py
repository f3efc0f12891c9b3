"""Status of a run, as `forebay jobs --ray` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.errors import InvalidOption

RunState = Literal["starting", "training", "resizing", "stopping", "failed-over"]
"""starting: no worker has trained yet. training: steps are made. resizing: the world is about to change. stopping: the
run ends at its next checkpoint. failed-over: workers were lost and are being replaced.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """State of an active run at one moment.

    The defaults belong to a run without a step. `world_size` is the number of workers that train now. `target` is the
    number it should have, within `min_workers` and `max_workers`. `callback_target` is the last target that its own
    callbacks requested, or None. `epoch` counts from 0. `position` is the number of rows passed in it.
    `last_commit_step` and `last_commit_age_s` belong to the newest checkpoint, and are None before the first one. Its
    step is the last reported step at that time. Steps are reported about ten times a second.
    `started_at` is in Unix seconds. `node` is the node of the driver.
    """

    name: str
    driver: str
    state: RunState = "starting"
    world_size: int = 0
    target: int
    min_workers: int
    max_workers: int
    callback_target: int | None = None
    epoch: int = 0
    epochs: int
    step: int = 0
    position: int = 0
    rows_per_s: float = 0.0
    last_commit_step: int | None = None
    last_commit_age_s: float | None = None
    started_at: float
    node: str
    path: str


def validate_target(name: str, target: int, low: int, high: int) -> None:
    """Raise `InvalidOption` for a target that the run `name`, with `low` to `high` workers, cannot have."""
    if low == high:
        raise InvalidOption(
            f"run {name!r} has a fixed number of workers, {low}: nothing was changed. To scale it, stop it and run it "
            "again with elastic=Elastic(min_workers=..., max_workers=...) in its job; it resumes its checkpoint.",
            name=name,
        )
    if not low <= target <= high:
        raise InvalidOption(
            f"{target} workers are out of bounds for run {name!r}, whose job allows {low} to {high}: nothing was "
            f"changed. Give a number from {low} to {high}.",
            name=name,
            min_workers=low,
            max_workers=high,
        )
