"""Runs of a trial that forks from other trials.

One run per generation, found by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyarrow.fs import FileType

from forebay.runtime.formatting import without_addresses
from forebay.storage.atomic import find_small, write_atomically
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children
from forebay.sweep.layout import generation_of, run_name, trial_id_of
from forebay.sweep.trial.fork import fork, newest_stored_step, origin_of
from forebay.training.runs.run_folder import RunFolder

CONFIG = "config.json"
"""File in the folder of a later generation: the config of the fork."""


def newest_generation(runs: str, sweep: str, trial_id: str) -> int:
    """Return the newest generation with a checkpoint.

    Of the trial's runs below `runs`. 0 without one.
    """
    return next((found for found in _generations(runs, sweep, trial_id) if _is_begun(runs, sweep, trial_id, found)), 0)


def start_generation(
    source: Mapping[str, Any], runs: str, *, sweep: str, trial_id: str, config: Mapping[str, Any]
) -> int:
    """Continue the trial from another run's checkpoint.

    The checkpoint of `source["step"]` of the run `source["run"]`. Returns the trial's new generation.

    If the trial's process was lost after a fork from there with the same config, that fork is continued.
    """
    there = _generations(runs, sweep, trial_id)
    newest = there[0] if there else 0
    path = below(runs, run_name(sweep, trial_id, newest))
    if newest and _config_of(path) == _text(config) and _is_branch_of(path, source):
        return newest
    path = below(runs, run_name(sweep, trial_id, newest + 1))
    fork(source["run"], source["step"], path)
    write_atomically(below(path, CONFIG), _text(config).encode())
    return newest + 1


def _generations(runs: str, sweep: str, trial_id: str) -> list[int]:
    """Generations of the trial, newest first."""
    location = resolve(runs)
    try:
        found = [info.base_name for info in children(location.fs, location.path) if info.type == FileType.Directory]
    except FileNotFoundError:
        return []
    return sorted((generation_of(name, sweep) for name in found if trial_id_of(name, sweep) == trial_id), reverse=True)


def _is_begun(runs: str, sweep: str, trial_id: str, generation: int) -> bool:
    return newest_stored_step(below(runs, run_name(sweep, trial_id, generation))) is not None


def _is_branch_of(path: str, source: Mapping[str, Any]) -> bool:
    origin = origin_of(path)
    # By its name: the sweep may have been moved since.
    return origin is not None and (_name(origin.run), origin.step) == (_name(source["run"]), source["step"])


def _name(run: str) -> str:
    return RunFolder.at(run).name


def _config_of(path: str) -> str | None:
    content = find_small(resolve(below(path, CONFIG)))
    return None if content is None else content.decode()


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps({name: without_addresses(repr(value)) for name, value in sorted(config.items())})
