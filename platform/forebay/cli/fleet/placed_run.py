"""What a submitter tells `forebay run` in variables: the name of the run, its storage, its bounds, and its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from forebay.errors import InvalidOption
from forebay.sweep.sweep import Sweep
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job

PREFIX = "FOREBAY_RUN_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """Values of `FOREBAY_RUN_NAME`, `_STORAGE`, `_WORKERS` (`2..8`) and `_ATTEMPT` (`NUMBER/TOKEN`). None: not set."""

    name: str | None = None
    storage: str | None = None
    workers: tuple[int, int] | None = None
    attempt: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PlacedRun:
        """Read the variables. Raises `InvalidOption` for bounds that are none."""
        given = {name: environment.get(PREFIX + name.upper()) for name in ("name", "storage", "workers", "attempt")}
        bounds, attempt = given["workers"], given["attempt"]
        return cls(
            name=given["name"],
            storage=given["storage"],
            workers=None if bounds is None else _bounds(bounds),
            # A number alone: no other process has created the attempt, so this one does.
            attempt=attempt if attempt is not None and "/" in attempt else None,
        )

    def applied_to(self, made: Job | Sweep) -> Job | Sweep:
        """Job or sweep under the submitter's name, storage and bounds. Its other values stay."""
        name, storage = self.name or made.name, self.storage or made.storage
        if isinstance(made, Sweep):
            return replace(made, name=name, storage=storage)
        job = replace(made, name=name, storage=storage)
        if self.workers is None:
            return job
        least, most = self.workers
        if least == most:
            return replace(job, workers=least, elastic=None)
        return replace(job, workers=1, elastic=Elastic(min_workers=least, max_workers=most))


def _bounds(text: str) -> tuple[int, int]:
    least, dots, most = text.partition("..")
    if not dots or not least.isdecimal() or not most.isdecimal():
        raise InvalidOption(f"{PREFIX}WORKERS={text!r} is not a pair of numbers. Write for example 2..8.")
    return int(least), int(most)
