"""Setting that every system of the preparation bench receives, and the facts that it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PreparationSetting:
    """Setting of one job: prepare `rows` clicks, then train `epochs` epochs on them.

    - The data are in `bucket/prefix` of the S3 server at `endpoint`: `files` of clicks, and one file of users.
    - `folder` is a folder of both runs of the job. What a system keeps there, the second run finds.
    - `variant` is the variant of the system, "" for the plain one.
    """

    endpoint: str
    prefix: str
    files: list[str]
    rows: int
    folder: str
    variant: str = ""
    epochs: int = 3
    batch: int = 8192
    threads: int = 2
    seed: int = 7

    @property
    def uri(self) -> str:
        """URI of the data, for `fb.prepare` and `fb.scan`."""
        options = f"endpoint_override={self.endpoint}&scheme=http&region=us-east-1&anonymous=true"
        return f"s3://bucket/{self.prefix}?{options}"

    @property
    def log(self) -> str:
        """Log of one run, to which every process appends: rows that were transformed, and epochs."""
        return str(Path(self.folder) / "log.jsonl")

    @property
    def cache(self) -> str:
        """Folder for blocks on the disk of the node."""
        return str(Path(self.folder) / "cache")


@dataclass(frozen=True)
class PreparationFacts:
    """Facts that explain the numbers of a system."""

    version: str
    keeps: str
    shuffled: str
    resumes: str
    note: str = ""
