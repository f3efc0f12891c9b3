"""A sweep: many trials of one job function, on one cluster, over one cache."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from forebay.driver.driver import named_driver
from forebay.errors import BadJob, InvalidOption, whole_number
from forebay.job.job import NAME_FORM, Job
from forebay.runs.callback import Callback
from forebay.runs.worker_spec import title_of
from forebay.storage.credentials import Access
from forebay.storage.filesystem import resolve
from forebay.sweep.result import SweepResult
from forebay.sweep.space import (
    RESERVED,
    Domain,
    Grid,
    SweepParameters,
    TuneDomain,
    check_fits,
    depends_on_others,
    domain_of,
    example_of,
    text_of,
)
from forebay.sweep.trial_spec import TrialSpec


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials of `job` over `space`, each a run of its own under `driver`; `run()` runs them.

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
        deadline_s: After how many seconds of this call of `run()` the trials that still train commit and end. A
            `DeadlineScheduler` has them end by then.
        max_concurrent: How many trials train at a time; None has as many as get their least workers.
        callbacks: Makes the callbacks of a trial's run; its parameters may be swept or fixed as well.
        name: The sweep's folder below `storage`; the same name run again goes on, and keeps trials that have ended.
            `space` and `num_trials` have to be the same then.
        storage: A path, or any URI `forebay.storage` knows.
        seed: Of random draws.
        max_failures: How often a trial's own process may be lost; its workers have `max_failures` of the job.
        hang_timeout_s: A trial whose workers make no step for so long has failed.

    Raises `InvalidOption` for values that can never work; `check()` looks at the job function and the outside world.
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

    def run(self, show: bool = True) -> SweepResult:
        """Run the trials, or go on with them; `show` keeps a table of them up to date.

        Raises what `check` raises, `InvalidOption` for a sweep that is under way, and `SweepFailed` where every trial
        failed, or where what Ray Tune has noted of an earlier start is lost. Ctrl-C, `forebay stop` and the deadline
        let all trials commit and end first; the same name goes on from there.
        """
        began = time.monotonic()
        job = self.check()
        # Ray Tune, only where a sweep is run.
        tuning = import_module("forebay.sweep.run_sweep")
        result: SweepResult = tuning.tune_sweep(self, job, show=show, began=began)
        return result

    def check(self) -> Job:
        """Find out, before any trial starts, everything that can be known; the answer is the job of a possible trial.

        Raises:
            BadJob: A name that is no parameter, one that is missing, or values of another type than the parameter's.
            InvalidOption: An empty list, a range that holds nothing, an unknown driver.
        """
        takes = SweepParameters.of(self.job, self.callbacks)
        domains = self.domains()
        for name, domain in domains.items():
            takes.check_name(name, "space")
            for annotation in takes.annotations(name):
                check_fits(name, domain, annotation)
        for name in self.fixed:
            takes.check_name(name, "fixed")
        self._check_complete(takes)
        named_driver(self.driver)
        return self._check_job(domains)

    def domains(self) -> dict[str, Domain]:
        """What each parameter of the space is drawn from. Raises `InvalidOption` for an impossible range."""
        return {name: domain_of(name, given) for name, given in self.space.items()}

    def space_texts(self) -> dict[str, str]:
        """What each parameter is drawn from, for people and to compare."""
        return {name: text_of(domain) for name, domain in self.domains().items()}

    @property
    def grid_size(self) -> int:
        """How many trials one round of the grid takes."""
        return math.prod(len(domain.values) for domain in self.domains().values() if isinstance(domain, Grid))

    def task(self, name: str, *, exchanges: bool = False) -> TrialSpec:
        """What the trials of this sweep, under `name`, are made from."""
        storage = resolve(self.storage).uri
        return TrialSpec(
            sweep=name,
            storage=storage,
            # Of what it is called without them: that is what the trials' processes will ask for.
            access=Access([storage]),
            recipe=self.job,
            takes=SweepParameters.of(self.job, self.callbacks),
            fixed=dict(self.fixed),
            driver=self.driver,
            metric=self.metric,
            mode=self.mode,
            hang_timeout_s=self.hang_timeout_s,
            callbacks=self.callbacks,
            exchanges=exchanges,
        )

    @property
    def title(self) -> str:
        """What to call a sweep without a name: the job function's module or name, and the time."""
        title = title_of(self.job)
        if title == "job":
            module = str(getattr(self.job, "__module__", title)).rpartition(".")[2]
            title = re.sub(r"^forebay_job_|_[0-9a-f]{8}$", "", module)
        title = re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-_") or "sweep"
        return f"{title}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"

    def _check_complete(self, takes: SweepParameters) -> None:
        twice = sorted(self.space.keys() & self.fixed.keys())
        if twice:
            raise InvalidOption(
                f"{twice[0]} is in space and in fixed. Leave it out of one of them.", parameter=twice[0]
            )
        for name in RESERVED:
            if name in self.space:
                raise InvalidOption(
                    f"space names {name!r}, which the sweep gives to its trials itself. Leave it out.", parameter=name
                )
        known = {**takes.job, **takes.callbacks}
        missing = [name for name, each in known.items() if each.required and name not in {**self.space, **self.fixed}]
        if missing:
            raise BadJob(
                f"every trial needs {', '.join(missing)}. Put it into space or fixed.{takes.listing}",
                parameter=missing[0],
            )

    def _check_job(self, domains: Mapping[str, Domain]) -> Job:
        config = _example(domains)
        task = self.task("check")
        job = replace(task.job(config), storage=self.storage)
        task.make_callbacks(config)
        job.check()
        return job


def _example(domains: Mapping[str, Domain]) -> dict[str, Any]:
    """A config that may be drawn, the same every time; `tune.sample_from` is given the others, as in the sweep."""
    config = {name: example_of(domain) for name, domain in domains.items() if not depends_on_others(domain)}
    functions = {
        name: each.domain for name, each in domains.items() if isinstance(each, TuneDomain) and name not in config
    }
    if not functions:
        return config
    # Ray Tune, only where its functions are.
    generator = import_module("ray.tune.search.variant_generator")
    try:
        _, spec = next(generator.generate_variants({"config": {**config, **functions}}))
    except (ValueError, generator.RecursiveDependencyError) as error:
        raise InvalidOption(
            f"{', '.join(functions)} (tune.sample_from) cannot be drawn: {error}. Give functions like "
            "`lambda spec: 2 * spec.config.other`, which do not wait for each other."
        ) from error
    return dict(spec["config"])


def _check_seconds(option: str, found: object) -> None:
    if found is None and option == "deadline_s":
        return
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise InvalidOption(f"{option}={found!r} cannot work. Give seconds, more than 0.", option=option)
