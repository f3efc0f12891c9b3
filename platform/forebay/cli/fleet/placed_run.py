"""Variables `FOREBAY_RUN_*`, by which a submitter sets up a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from forebay.errors import InvalidOption
from forebay.sweep.sweep import Sweep
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.runs.timeline.cost import MACHINE, PRICE, PRICE_ON_DEMAND

PREFIX = "FOREBAY_RUN_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """Values of the variables `FOREBAY_RUN_*`.

    None: not set. `workers` are bounds, written `2..8`, and `start` the first number of workers. `cpus` and `gpus` are
    per worker. `attempt` is `NUMBER/TOKEN`. `machine` is cluster, SKU and market, `price` a worker's for an hour, and
    `price_on_demand` where spot machines may fall back.
    """

    name: str | None = None
    storage: str | None = None
    workers: tuple[int, int] | None = None
    start: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    attempt: str | None = None
    machine: str | None = None
    price: float | None = None
    price_on_demand: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PlacedRun:
        """Read the variables.

        Raises `InvalidOption` for bounds that are not two numbers.
        """
        given = {each.name: environment.get(PREFIX + each.name.upper()) for each in fields(cls)}
        bounds, start, attempt = given["workers"], given["start"], given["attempt"]
        return cls(
            name=given["name"],
            storage=given["storage"],
            workers=None if bounds is None else _bounds(bounds),
            start=None if start is None else _count("START", start),
            cpus=_number(given["cpus"]),
            gpus=_number(given["gpus"]),
            machine=given["machine"],
            price=_number(given["price"]),
            price_on_demand=_number(given["price_on_demand"]),
            # A number alone: no other process has created the attempt, so this one does.
            attempt=attempt if attempt is not None and "/" in attempt else None,
        )

    def applied_to(self, made: Job | Sweep) -> Job | Sweep:
        """Apply the submitter's name, storage and bounds.

        Raises `InvalidOption` for a job whose workers need more than the submitter gives to one.
        """
        name, storage = self.name or made.name, self.storage or made.storage
        if isinstance(made, Sweep):
            return replace(made, name=name, storage=storage)
        self._require_room(made)
        facts = {MACHINE: self.machine, PRICE: self.price, PRICE_ON_DEMAND: self.price_on_demand}
        known = {fact: value for fact, value in facts.items() if value is not None}
        job = self._with_gpus(replace(made, name=name, storage=storage, parameters={**made.parameters, **known}))
        if self.workers is None:
            return job
        least, most = self.workers
        if least == most:
            return replace(job, workers=least, elastic=None)
        return replace(job, workers=1, elastic=Elastic(min_workers=least, max_workers=most, start=self.start))

    def _with_gpus(self, job: Job) -> Job:
        """Give each worker the task's GPUs, unless the job names some."""
        if self.gpus is None or job.resources.gpus is not None:
            return job
        return replace(job, resources=replace(job.resources, gpus=self.gpus))

    def _require_room(self, job: Job) -> None:
        for kind, needed, given in (("cpu", job.resources.cpus, self.cpus), ("gpus", job.resources.gpus, self.gpus)):
            if given is not None and needed is not None and needed > given:
                raise InvalidOption(
                    f"one worker of this job needs {needed:g} {kind}, and a worker of the task has {given:g}. Set "
                    f"workers.{kind} of the task to {needed:g} or more, or use less in Resources(...)."
                )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidOption(f"{PREFIX}{name}={text!r} is not a number. Write for example 2.")
    return int(text)


def _bounds(text: str) -> tuple[int, int]:
    least, dots, most = text.partition("..")
    if not dots or not least.isdecimal() or not most.isdecimal():
        raise InvalidOption(f"{PREFIX}WORKERS={text!r} is not a pair of numbers. Write for example 2..8.")
    return int(least), int(most)
