"""A sweep: many trials of one job function, on one cluster, over one cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from forebay.errors import InvalidOption, whole_number
from forebay.job.job import NAME_FORM, Job
from forebay.runs.callback import Callback


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials of `job` over `space`, each a run of its own under `driver`; `run_sweep` runs them.

    Attributes:
        job: A job function; the names of `space` and `fixed` are its parameters.
        space: Parameter -> what to draw from: a list (one of these), a pair of numbers (a range; of whole numbers if
            both are), a `range`, a domain of `ray.tune`, or `{"grid_search": [...]}`.
        metric: What to compare trials by: a metric of `EpochEnded`.
        mode: Whether less of it is better, or more.
        num_trials: How many; a grid is gone through as often as that makes whole rounds, and at least once.
        fixed: Parameters that all trials share; words are read as on the command line.
        driver: `"ray"`, `"horovod"` or `"local"`, for every trial.
        searcher: A searcher of `ray.tune`, or a name of one (`"optuna"`, `"bohb"`); None draws at random from `seed`.
        scheduler: A trial scheduler of `ray.tune`; None lets all trials end, or with a deadline is a
            `DeadlineScheduler`.
        deadline_s: After how many seconds of this call of `run_sweep` the trials that still train commit and end. A
            `DeadlineScheduler` has them end by then.
        max_concurrent: How many trials train at a time; None has as many as get their least workers.
        callbacks: Makes the callbacks of a trial's run; its parameters may be swept or fixed as well.
        name: The sweep's folder below `storage`; the same name run again goes on, and keeps trials that have ended.
            `space` and `num_trials` have to be the same then.
        storage: A path, or any URI `forebay.storage` knows.
        seed: Of random draws.
        max_failures: How often a trial's own process may be lost; its workers have `max_failures` of the job.
        hang_timeout_s: A trial whose workers make no step for so long has failed.

    Raises `InvalidOption` for values that can never work; `run_sweep` checks the job function and the outside world.
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
            raise InvalidOption(f"job={self.job!r} is no function. Give `def job(...) -> Job`.")
        if self.mode not in ("min", "max"):
            raise InvalidOption(f"mode={self.mode!r} is unknown. Choose 'min' or 'max'.")
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidOption(
                f"metric={self.metric!r} names nothing. Give the name of a metric that the job commits or reports."
            )
        if not self.space:
            raise InvalidOption("space is empty: there is nothing to sweep. Name a parameter of the job in it.")
        for option, least in (("num_trials", 1), ("max_failures", 0), ("seed", 0)):
            whole_number(option, getattr(self, option), least=least)
        if self.max_concurrent is not None:
            whole_number("max_concurrent", self.max_concurrent, least=1)
        for option in ("hang_timeout_s", "deadline_s"):
            _check_seconds(option, getattr(self, option))
        if self.name is not None and not NAME_FORM.fullmatch(self.name):
            raise InvalidOption(
                f"name={self.name!r} cannot name a folder. Use letters, digits, '.', '_' and '-', beginning with a "
                "letter or a digit.",
                name=self.name,
            )


def _check_seconds(option: str, found: object) -> None:
    if found is None and option == "deadline_s":
        return
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise InvalidOption(f"{option}={found!r} cannot work. Give seconds, more than 0.", option=option)
