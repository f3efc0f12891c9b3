"""What Ray Tune knows of a sweep that was run before: it has to take up all of it, or the sweep cannot go on.

Tune begins anew, with other trials, where it cannot read its own file, and says so in its log only. Beyond its
documented surface, checked on Ray 2.60, are the name and the first level of that file, and a trial's count of failures.
"""

from __future__ import annotations

import json
from typing import Any

from pyarrow.fs import FileSelector
from ray import tune
from ray.tune.experiment import Trial

from forebay.errors import SweepFailed
from forebay.storage.filesystem import below, resolve
from forebay.sweep.layout import TUNE
from forebay.sweep.record.record import Record

STATE_FILES = "experiment_state-"


class Restored(tune.Callback):  # type: ignore[misc]
    """Ends a sweep before its first step where Tune has not taken up the trials `known`.

    Those that go on may lose their processes `max_failures` times again, whatever they met before.
    """

    def __init__(self, known: frozenset[str], path: str, max_failures: int) -> None:
        self._known, self._path, self._max_failures = known, path, max_failures

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ARG002 - Tune's signature
        lost = self._known - {trial.trial_id for trial in trials}
        if lost:
            raise _lost(self._path, f"{len(lost)} of {len(self._known)} trials were not taken up, {min(lost)} for one")
        for trial in trials:
            if trial.trial_id in self._known and not trial.is_finished():
                trial.max_failures, trial.run_metadata.num_failures = self._max_failures, 0
        self._known = frozenset()


def trials_of_before(path: str, record: Record) -> frozenset[str] | None:
    """The trials that Tune has noted in the sweep's folder `path`; None where it has not begun.

    Raises `SweepFailed` where its file is torn, or gone while the record has trials that were trained.
    """
    folder = resolve(below(path, TUNE))
    found = folder.fs.get_file_info(FileSelector(folder.path, allow_not_found=True))
    states = [info.path for info in found if info.base_name.startswith(STATE_FILES)]
    if not states:
        if any(trial.points for trial in record.trials.values()):
            raise _lost(path, "nothing is there")
        return None
    newest = max(states)
    try:
        with folder.fs.open_input_stream(newest) as stream:
            trials = json.loads(stream.read())["trial_data"]
        return frozenset(json.loads(state)["trial_id"] for state, _ in trials)
    except (ValueError, KeyError, TypeError) as error:
        raise _lost(path, f"{newest.rpartition('/')[2]} is not whole: {error}") from error


def _lost(path: str, what: str) -> SweepFailed:
    return SweepFailed(
        f"the sweep in {path} cannot go on: Ray Tune lost what it had noted in {below(path, TUNE)} ({what}). Give the "
        "sweep a new name; what its trials came to stays in sweep.json and runs.",
        path=path,
    )
