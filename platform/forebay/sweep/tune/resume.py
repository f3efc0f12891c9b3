"""Trials of an earlier start, handed to Ray Tune again.

Their source is the sweep's own record, never Tune's files: Tune unpickles those, so whoever may write into a sweep's
folder could run code in its next start. A trial's state is in its run, which is found by the trial's id.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray.tune.experiment import Experiment, Trial
from ray.tune.experiment.config_parser import _create_trial_from_spec, _make_parser
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, SearchGenerator

from forebay.errors import InvalidOption, SweepFailed
from forebay.runtime.formatting import without_addresses
from forebay.storage.json_file import to_json
from forebay.sweep.record.backfill import backfill
from forebay.sweep.record.record import Record, TrialRecord, load_record
from forebay.sweep.setup import SweepSetup
from forebay.sweep.space import Domain, is_log, listed_values

log = logging.getLogger(__name__)

_NUMBERED = re.compile(r"\w+_([0-9]{5,})")
"""Id of a trial that the random searcher draws: the end counts its draws."""


class ResumedSearch(SearchAlgorithm):  # type: ignore[misc]
    """Search that begins with the unfinished trials of a record.

    They keep their ids and configs. Then `searcher` draws the trials that the record does not have: the random one
    skips what it had drawn, and other searchers are told the result of each ended trial first. At most `most` trials
    are under way at once, None for no limit.
    """

    def __init__(
        self, searcher: Any, record: Record, domains: Mapping[str, Domain], path: str, most: int | None
    ) -> None:
        self._is_random = isinstance(searcher, BasicVariantGenerator)
        self._within = SearchGenerator(searcher) if isinstance(searcher, Searcher) else searcher
        self._record, self._most, self._domains, self._space = record, most, domains, dict[str, Any]()
        unfinished = {trial.id for trial in record.trials.values() if self._goes_on(trial)}
        # Random trials that have ended are not told to anybody.
        known = [trial for trial in record.trials.values() if trial.id in unfinished or not self._is_random]
        configs = {trial.id: restored_config(trial, domains, path) for trial in known}
        self._resumed = deque((trial_id, config) for trial_id, config in configs.items() if trial_id in unfinished)
        self._resumed_configs = dict(self._resumed)
        self._ended_configs = {trial_id: config for trial_id, config in configs.items() if trial_id not in unfinished}
        self._num_live = 0
        self._drawn = {_draw_of(trial, path) for trial in record.trials.values()} if self._is_random else set()

    @property
    def metric(self) -> str | None:
        return self._within.metric  # type: ignore[no-any-return]

    @property
    def total_samples(self) -> int:
        return self._within.total_samples + len(self._resumed_configs)  # type: ignore[no-any-return]

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Pass the sweep's metric, mode and space on."""
        self._space = config
        return self._within.set_search_properties(metric, mode, config, **spec)  # type: ignore[no-any-return]

    def add_configurations(self, experiments: list[Experiment]) -> None:
        """Receive the sweep's experiment, and report ended trials to the searcher."""
        (self._experiment,) = experiments
        self._within.add_configurations(experiments)
        for trial_id, config in self._ended_configs.items():
            last = self._record.trials[trial_id].last
            self._tell(config, last.value if last else None)

    def next_trial(self) -> Trial | None:
        """Return the next trial, or None if none may start now."""
        if self._most is not None and self._num_live >= self._most:
            return None
        trial = self._restored(*self._resumed.popleft()) if self._resumed else self._new_trial()
        self._num_live += trial is not None
        return trial

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass the result of an epoch on."""
        if trial_id not in self._resumed_configs:
            self._within.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Pass the end of a trial on."""
        self._num_live -= 1
        if trial_id not in self._resumed_configs:
            self._within.on_trial_complete(trial_id, result, error)
        elif not self._is_random:
            self._tell(
                self._resumed_configs[trial_id], None if error or not result else result.get(self._record.metric)
            )

    def is_finished(self) -> bool:
        """Return whether all trials were handed out."""
        return not self._resumed and self._within.is_finished()

    def set_finished(self) -> None:
        """End the search."""
        self._resumed.clear()
        self._within.set_finished()

    def _goes_on(self, trial: TrialRecord) -> bool:
        # Other searchers have received a failure as final.
        return not trial.has_ended or trial.is_cut or (trial.state == "failed" and self._is_random)

    def _restored(self, trial_id: str, config: Mapping[str, Any]) -> Trial:
        spec = {**self._experiment.spec, "config": {**self._experiment.spec["config"], **config}}
        return _create_trial_from_spec(
            spec, _make_parser(), evaluated_params=dict(config), experiment_tag=trial_id, trial_id=trial_id
        )

    def _new_trial(self) -> Trial | None:
        trial = self._within.next_trial()
        while trial is not None and self._is_random and _number(trial.trial_id) in self._drawn:
            self._within.on_trial_complete(trial.trial_id)
            trial = self._within.next_trial()
        return trial

    def _tell(self, config: Mapping[str, Any], value: float | None) -> None:
        offered = {name: self._offered(name, each) for name, each in config.items()}
        try:
            self._within.searcher.add_evaluated_point(offered, value, error=value is None)
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            raise SweepFailed(
                f"the sweep {self._record.name!r} cannot resume: its searcher does not take the result of an earlier "
                f"trial ({error}). Give the sweep a new name.",
                name=self._record.name,
            ) from error

    def _offered(self, name: str, value: Any) -> Any:
        """Value as Tune offers it to a searcher, which gets a placeholder of an object in a list."""
        listed = listed_values(self._domains[name]) if name in self._domains else []
        categories = getattr(self._space.get(name), "categories", ())
        return next((each for one, each in zip(listed, categories, strict=False) if _is_read_as(one, value)), value)


def check_resumable(searcher: Any, record: Record) -> None:
    """Check that `searcher` can be told of earlier trials.

    Raises `InvalidOption` if it has no `add_evaluated_point`.
    """
    if not record.trials or isinstance(searcher, BasicVariantGenerator):
        return
    within = searcher
    while isinstance(inner := getattr(within, "searcher", None), Searcher):
        within = inner
    if getattr(type(within), "add_evaluated_point", None) in (None, Searcher.add_evaluated_point):
        raise InvalidOption(
            f"the sweep {record.name!r} was started before, and its searcher {type(within).__name__} cannot be told of "
            "earlier trials (it has no add_evaluated_point). Give the sweep a new name, or leave searcher out; "
            "searcher='optuna' can resume.",
            searcher=type(within).__name__,
        )


def restored_config(trial: TrialRecord, domains: Mapping[str, Domain], path: str) -> dict[str, Any]:
    """Return the config of a recorded trial, as it was drawn.

    JSON holds no tuples and no objects: such a value is found in the list that it was chosen from. Raises `SweepFailed`
    if it cannot be.
    """
    config = dict(trial.config)
    for name in trial.inexact:
        found = _values_of(config[name], domains.get(name))
        if len(found) != 1:
            raise SweepFailed(
                f"the sweep in {path} cannot resume: trial {trial.id} has {name}={config[name]!r} in sweep.json, which "
                f"stands for {len(found)} values of its space. Give the sweep a new name, and parameters that are "
                "numbers or texts.",
                path=path,
            )
        config[name] = found[0]
    return config


def with_drawn_values(trial: TrialRecord, domains: Mapping[str, Domain]) -> TrialRecord:
    """Return a recorded trial with the values of its space that JSON does not hold.

    Those that cannot be found stay as they were read.
    """

    def drawn(name: str, value: Any) -> Any:
        found = _values_of(value, domains.get(name)) if name in trial.inexact else []
        return found[0] if len(found) == 1 else value

    config = {name: drawn(name, value) for name, value in trial.config.items()}
    best = trial.best_config and {name: drawn(name, value) for name, value in trial.best_config.items()}
    return replace(trial, config=config, best_config=best)


def _values_of(read: Any, domain: Domain | None) -> list[Any]:
    """Values that `domain` lists and that JSON holds as `read`."""
    return [] if domain is None else [value for value in listed_values(domain) if _is_read_as(value, read)]


def _is_read_as(value: Any, read: Any) -> bool:
    return without_addresses(to_json(value)) == without_addresses(to_json(read))


def open_record(setup: SweepSetup, name: str, path: str) -> Record:
    """Open the record of the sweep `name`.

    In the folder `path`, continued from an earlier start if there was one.

    Raises `InvalidOption` if that start does not match `setup`.
    """
    sweep = setup.sweep
    record = load_record(path) or Record(name=name, metric=sweep.metric, mode=sweep.mode)
    if record.name != name:
        raise InvalidOption(
            f"the folder {path} holds the sweep {record.name!r}, and its runs are named after that. Rename the folder "
            f"to {record.name!r} to continue, or give this sweep another name.",
            name=name,
            found=record.name,
        )
    if (record.metric, record.mode) != (sweep.metric, sweep.mode):
        raise InvalidOption(
            f"the sweep {name!r} was for the {record.mode} of {record.metric!r}; this one is for the {sweep.mode} of "
            f"{sweep.metric!r}. Give it another name.",
            name=name,
        )
    backfill(record, path)
    _validate_same_space(record, setup)
    if warning := _other_values(record, setup):
        log.warning("%s", warning)
    for trial in list(record.trials.values()):
        record.put(with_drawn_values(trial, setup.domains))
    record.space, record.fixed, record.num_trials = setup.space_texts, setup.fixed_texts, setup.sweep.num_trials
    record.log_axes = [name for name, domain in setup.domains.items() if is_log(domain)]
    return record


def _validate_same_space(record: Record, setup: SweepSetup) -> None:
    """Compare the space with the first start's.

    Raises `InvalidOption` if they differ.
    """
    now: dict[str, object] = {**setup.space_texts, "num_trials": setup.sweep.num_trials}
    was: dict[str, object] = {**record.space, "num_trials": record.num_trials}
    changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if record.trials and record.space and changed:
        raise InvalidOption(
            f"the sweep {record.name!r} was started with {changed[0]}={was.get(changed[0], 'nothing')}; this one has "
            f"{now.get(changed[0], 'nothing')}. Give it another name, or run it as it was.",
            name=record.name,
            changed=changed,
        )


def _other_values(record: Record, setup: SweepSetup) -> str | None:
    """Warning that other values are fixed than in the last start. None if they are the same."""
    now = setup.fixed_texts
    changed = [f"{name}={now[name]} (before: {was})" for name, was in record.fixed.items() if now.get(name, was) != was]
    if not record.trials or not changed:
        return None
    return (
        f"Sweep {record.name!r} goes on with {', '.join(changed)}. Trials that have ended were trained with the values "
        "of before, and are compared with those that come. To train all with the new ones, give another name."
    )


def _draw_of(trial: TrialRecord, path: str) -> int:
    number = _number(trial.id)
    if number is None:
        raise SweepFailed(
            f"the sweep in {path} cannot resume: {trial.id!r} in sweep.json is not the id of a random trial. Its "
            "searcher was another one: give the sweep a new name, or that searcher.",
            path=path,
        )
    return number


def _number(trial_id: str) -> int | None:
    found = _NUMBERED.fullmatch(trial_id)
    return None if found is None else int(found[1])
