"""Ray Tune's state from an earlier start.

Tune must restore all of it, or the sweep cannot resume.

If Tune cannot read its own file, it starts again with other trials and only logs this. Beyond its documented surface,
checked on Ray 2.56 to 2.60: the name and the first level of that file, and a trial's count of failures.
"""

from __future__ import annotations

import json
from typing import Any

from pyarrow.fs import FileSelector
from ray import tune
from ray.tune import ResumeConfig
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator

from forebay.errors import InvalidOption, SweepFailed
from forebay.storage.filesystem import below, resolve
from forebay.storage.small_files import read_small
from forebay.sweep.layout import TUNE
from forebay.sweep.record.backfill import backfill
from forebay.sweep.record.record import Record, load_record
from forebay.sweep.setup import SweepSetup
from forebay.sweep.space import is_log

STATE_FILES = "experiment_state-"


class ResumeCheck(tune.Callback):  # type: ignore[misc]
    """Tune callback that refuses a partly restored sweep.

    It ends a sweep before its first step if Tune has not restored the trials `known`.

    Resumed trials may lose their processes `max_failures` times again.
    """

    def __init__(self, known: frozenset[str], path: str, max_failures: int) -> None:
        self._known, self._path, self._max_failures = known, path, max_failures

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        lost = self._known - {trial.trial_id for trial in trials}
        if lost:
            raise _lost(
                self._path, f"{len(lost)} of {len(self._known)} trials were not restored, for example {min(lost)}"
            )
        for trial in trials:
            if trial.trial_id in self._known and not trial.is_finished():
                trial.max_failures, trial.run_metadata.num_failures = self._max_failures, 0
        self._known = frozenset()


def load_known_trials(path: str, record: Record) -> frozenset[str] | None:
    """Return the trials that Tune has noted.

    Their ids, from the sweep's folder `path`. None if it has not started.

    Raises `SweepFailed` if its file is corrupt, or missing while the record has trained trials.
    """
    folder = resolve(below(path, TUNE))
    found = folder.fs.get_file_info(FileSelector(folder.path, allow_not_found=True))
    states = [info.base_name for info in found if info.base_name.startswith(STATE_FILES)]
    if not states:
        if any(trial.points for trial in record.trials.values()):
            raise _lost(path, "its file is missing")
        return None
    newest = max(states)
    try:
        trials = json.loads(read_small(folder.child(newest)))["trial_data"]
        return frozenset(json.loads(state)["trial_id"] for state, _ in trials)
    except (ValueError, KeyError, TypeError) as error:
        raise _lost(path, f"{newest} is not complete: {error}") from error


def resume_config(searcher: Any) -> ResumeConfig:
    """Return Tune's configuration for a restart.

    Unfinished trials resume, and failed ones are tried again.

    Searchers other than the random one have received a failure as final: the first new result would raise in the
    middle of the sweep.
    """
    types = ResumeConfig.ResumeType
    return ResumeConfig(errored=types.RESUME if isinstance(searcher, BasicVariantGenerator) else types.SKIP)


def open_record(setup: SweepSetup, name: str, path: str) -> Record:
    """Open the record of the sweep `name`.

    In the folder `path`, continued from an earlier start if there was one.

    Raises `InvalidOption` if that start does not match `setup`.
    """
    sweep = setup.sweep
    record = load_record(path) or Record(name=name, metric=sweep.metric, mode=sweep.mode)
    if (record.metric, record.mode) != (sweep.metric, sweep.mode):
        raise InvalidOption(
            f"the sweep {name!r} was for the {record.mode} of {record.metric!r}; this one is for the {sweep.mode} of "
            f"{sweep.metric!r}. Give it another name.",
            name=name,
        )
    backfill(record, path)
    _validate_same_space(record, setup)
    record.space, record.num_trials = setup.space_texts, setup.sweep.num_trials
    record.log_axes = [name for name, domain in setup.domains.items() if is_log(domain)]
    return record


def _validate_same_space(record: Record, setup: SweepSetup) -> None:
    """Compare the space with the first start's.

    Tune keeps using the first one. Raises `InvalidOption` if they differ.
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


def _lost(path: str, what: str) -> SweepFailed:
    return SweepFailed(
        f"the sweep in {path} cannot resume: Ray Tune's notes of it are lost in {below(path, TUNE)} ({what}). Give the "
        "sweep a new name; the results of its trials stay in sweep.json and runs.",
        path=path,
    )
