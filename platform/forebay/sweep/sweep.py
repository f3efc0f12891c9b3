"""Many trials of one job function.

On one cluster, over one cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from forebay.errors import InvalidOption, whole_number
from forebay.training.job.job import NAME_FORM, Job
from forebay.training.runs.control import Callback

LONGEST_NAME = 230
"""Letters that leave room for `.1a2b3_00000.12` in the name of a trial's run."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials of `job` over `space`, run by `run_sweep`.

    Each trial is a run under `driver`.

    Attributes:
        job: Job function; the names of `space` and `fixed` are its parameters.
        space: Parameter -> domain: a list (one of these), a pair of numbers (a range; of whole numbers if both are), a
            `range`, a domain of `ray.tune`, or `{"grid_search": [...]}`.
        metric: Metric of `EpochEnded` that trials are compared by.
        mode: `"min"` if less of it is better, `"max"` if more.
        num_trials: Number of trials. A grid is repeated in whole rounds, at least once.
        fixed: Parameters shared by all trials; text values are parsed as on the command line.
        driver: `"ray"`, `"horovod"` or `"local"`, for every trial.
        searcher: Searcher of `ray.tune`, or the name of one (`"optuna"`, `"bohb"`). None draws at random from `seed`.
        scheduler: Trial scheduler of `ray.tune`. None trains all trials to their end, or with a deadline is a
            `DeadlineScheduler`.
        deadline_s: Seconds from the call of `run_sweep` until running trials save a checkpoint and end. A
            `DeadlineScheduler` ends them by then.
        max_concurrent: Largest number of trials that train at once. None allows as many as fit with their minimum of
            workers.
        callbacks: Function that makes the callbacks of a trial's run; its parameters may be swept or fixed too.
        name: Folder of the sweep below `storage`. Running the same name again resumes the sweep and keeps ended trials;
            `space` and `num_trials` must be unchanged.
        storage: Path, or any URI that `forebay.storage` supports.
        seed: Seed of random draws.
        max_failures: Number of times that a trial's own process may be lost. Workers have the job's `max_failures`.
        hang_timeout_s: Seconds without a step after which a trial has failed.

    Raises `InvalidOption` for values that can never work. `run_sweep` checks the job function and the outside world.
    """

    job: Callable[..., Job]
    space: Mapping[str, Any]
    metric: str
    mode: Literal["min", "max"]
    _: KW_ONLY
    num_trials: int = 8
    fixed: Mapping[str, Any] = field(default_factory=dict)
    driver: str = "ray"
    searcher: Any = None
    scheduler: Any = None
    deadline_s: float | None = None
    max_concurrent: int | None = None
    callbacks: Callable[..., Sequence[Callback]] | None = None
    name: str | None = None
    storage: str = "runs"
    seed: int = 0
    max_failures: int = 3
    hang_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if not callable(self.job):
            raise InvalidOption(f"job={self.job!r} is not a function. Give `def job(...) -> Job`.")
        if self.mode not in ("min", "max"):
            raise InvalidOption(f"mode={self.mode!r} is unknown. Choose 'min' or 'max'.")
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidOption(
                f"metric={self.metric!r} is not a name. Give the name of a metric that the job commits or reports."
            )
        if not self.space:
            raise InvalidOption("space is empty. Name at least one parameter of the job.")
        for option, least in (("num_trials", 1), ("max_failures", 0), ("seed", 0)):
            whole_number(option, getattr(self, option), least=least)
        if self.max_concurrent is not None:
            whole_number("max_concurrent", self.max_concurrent, least=1)
        for option in ("hang_timeout_s", "deadline_s"):
            _check_seconds(option, getattr(self, option))
        if self.name is not None and not (NAME_FORM.fullmatch(self.name) and len(self.name) <= LONGEST_NAME):
            raise InvalidOption(
                f"name={self.name!r} cannot name a folder, and its trials' runs. Use up to {LONGEST_NAME} letters, "
                "digits, '.', '_' and '-'; start with a letter or a digit.",
                name=self.name,
            )


def _check_seconds(option: str, found: object) -> None:
    if found is None and option == "deadline_s":
        return
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise InvalidOption(f"{option}={found!r} cannot work. Give a number of seconds, more than 0.", option=option)
