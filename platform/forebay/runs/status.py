"""What a run says of itself to whoever asks from outside: the line of `forebay ps`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "training", "resizing", "stopping", "failed-over"]
"""What the run is about: no worker has trained yet; steps are made; membership is about to change; it will end at the
next saved commit; workers were lost and are being replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run under way, at one moment; what has a default is that of a run without a step.

    `world_size` is how many workers train now, `target` how many there should be, within `min_workers` and
    `max_workers`; `asked` is how many its own callbacks asked for last, None where they did not. `epoch` counts from 0,
    `position` is rows into it. `last_commit_step` and `last_commit_age_s` are those of the newest saved commit, None
    before the first; its step is the one reported last by then, and steps are reported about ten times a second.
    `started_at` is Unix seconds, `node` where its driver runs.
    """

    name: str
    driver: str
    state: State = "starting"
    world_size: int = 0
    target: int
    min_workers: int
    max_workers: int
    asked: int | None = None
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
