"""The runs of a trial that goes on from commits of others: one per generation, found again by their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyarrow.fs import FileType

from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children
from forebay.sweep.layout import generation_of, run_name, trial_of
from forebay.sweep.trial.fork import branch, newest_stored, origin_of

CONFIG = "config.json"
"""In the folder of a run of a later generation: what it was branched with."""


def newest_generation(runs: str, sweep: str, trial_id: str) -> int:
    """The generation of the trial's newest run below `runs` that has a commit; 0 where there is none."""
    return next((found for found in _generations(runs, sweep, trial_id) if _is_begun(runs, sweep, trial_id, found)), 0)


def take_over(source: Mapping[str, Any], runs: str, *, sweep: str, trial_id: str, config: Mapping[str, Any]) -> int:
    """Let the trial go on from the commit of `source["step"]` of the run in `source["run"]`; its new generation.

    A branch from there with this very config is gone on with: then the trial's process was lost since.
    """
    there = _generations(runs, sweep, trial_id)
    newest = there[0] if there else 0
    path = below(runs, run_name(sweep, trial_id, newest))
    if newest and _config_of(path) == _text(config) and _is_branch_of(path, source):
        return newest
    path = below(runs, run_name(sweep, trial_id, newest + 1))
    branch(source["run"], source["step"], path)
    write_atomically(below(path, CONFIG), _text(config).encode())
    return newest + 1


def _generations(runs: str, sweep: str, trial_id: str) -> list[int]:
    """Newest first."""
    place = resolve(runs)
    try:
        found = [info.base_name for info in children(place.fs, place.path) if info.type == FileType.Directory]
    except FileNotFoundError:
        return []
    return sorted((generation_of(name, sweep) for name in found if trial_of(name, sweep) == trial_id), reverse=True)


def _is_begun(runs: str, sweep: str, trial_id: str, generation: int) -> bool:
    return newest_stored(below(runs, run_name(sweep, trial_id, generation))) is not None


def _is_branch_of(path: str, source: Mapping[str, Any]) -> bool:
    origin = origin_of(path)
    return origin is not None and origin.run == resolve(source["run"]).uri and origin.step == source["step"]


def _config_of(path: str) -> str | None:
    place = resolve(below(path, CONFIG))
    try:
        with place.fs.open_input_stream(place.path) as stream:
            return bytes(stream.read()).decode()
    except FileNotFoundError:
        return None


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps({name: repr(value) for name, value in sorted(config.items())})
