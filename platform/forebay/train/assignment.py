"""What one worker must know of a job."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.train.data import Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The part of a job that reaches a worker: what to train on, for how long, and how often to save.

    `commit_every` counts steps between saved commits; the end of an epoch is saved besides.
    """

    data: Data
    held_out: Data | None = None
    epochs: int = 1
    seed: int = 0
    commit_every: int = 100
