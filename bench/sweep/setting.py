"""What a system of the sweep bench is told, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SweepSetting:
    """`trials` trials over one data set, `concurrent` at a time, each through all its rows `epochs` times.

    The data lie in `bucket/prefix` of the S3 server at `endpoint`: `files`, of `rows` rows, a row group of about
    `row_group_bytes`. `folder` is an empty place of this run: `trials.jsonl` and `transforms.jsonl` in it are what all
    trials write down together. `threads` may read and transform for each trial; `variant` is of the system, "" for the
    plain one.
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
        """One line a trial: see `sweep_work.Account`."""
        return str(Path(self.folder) / "trials.jsonl")

    @property
    def transforms_log(self) -> str:
        """One line each time rows were transformed: which, see `sweep_work.spans`."""
        return str(Path(self.folder) / "transforms.jsonl")


@dataclass(frozen=True)
class SweepFacts:
    """What the numbers stand for."""

    version: str
    shares: str
    shuffled: str
    resumes: str
    note: str = ""
