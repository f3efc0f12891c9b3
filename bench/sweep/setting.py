"""Setting that every system of the sweep bench receives, and the facts that it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SweepSetting:
    """Setting of a sweep: `trials` trials over one dataset, `concurrent` at a time, each `epochs` times through all
    rows.

    - The data are in `bucket/prefix` of the S3 server at `endpoint`: `files` files with `rows` rows in total. A row
      group has about `row_group_bytes`.
    - `folder` is an empty folder of this run. All trials append to `trials.jsonl` and `transforms.jsonl` in it.
    - `threads` threads may read and transform for each trial.
    - `variant` is the variant of the system, "" for the plain one.
    """

    endpoint: str
    prefix: str
    files: list[str]
    rows: int
    row_group_bytes: int
    folder: str
    variant: str = ""
    trials: int = 8
    concurrent: int = 2
    epochs: int = 3
    batch: int = 8192
    threads: int = 2
    seed: int = 7

    @property
    def trials_log(self) -> str:
        """Log with one line per trial: see `work.WorkTotals`."""
        return str(Path(self.folder) / "trials.jsonl")

    @property
    def transforms_log(self) -> str:
        """Log with one line per transform, with the rows that were transformed: see `work.spans`."""
        return str(Path(self.folder) / "transforms.jsonl")


@dataclass(frozen=True)
class SweepFacts:
    """Facts that explain the numbers of a system."""

    version: str
    shares: str
    shuffled: str
    resumes: str
    note: str = ""
