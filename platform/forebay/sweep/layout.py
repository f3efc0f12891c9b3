"""Names of a sweep's runs and folders."""

from __future__ import annotations

from forebay.storage.filesystem import below

RUNS, TUNE = "runs", "tune"
"""Subfolders of a sweep: the runs of its trials, and Tune's own files."""


def run_name(sweep: str, trial_id: str, generation: int = 0) -> str:
    """Return the name of a trial's run.

    A trial that took over another trial's checkpoint has a new run, of the next generation.

    >>> run_name("ctr", "1a2b_00000"), run_name("ctr", "1a2b_00000", 2)
    ('ctr.1a2b_00000', 'ctr.1a2b_00000.2')
    """
    return f"{sweep}.{trial_id}.{generation}" if generation else f"{sweep}.{trial_id}"


def trial_id_of(run: str, sweep: str) -> str | None:
    """Return the trial of the run `run`.

    None if it does not belong to `sweep`.

    >>> trial_id_of("ctr.1a2b_00000.2", "ctr"), trial_id_of("ctr.v2.1a2b_00000", "ctr"), trial_id_of("ctr", "ctr")
    ('1a2b_00000', None, None)
    """
    parts = _parts(run, sweep)
    return None if parts is None else parts[0]


def generation_of(run: str, sweep: str) -> int:
    """Return how often a trial took over another's checkpoint.

    `run` is the trial's run.

    >>> generation_of("ctr.1a2b_00000.2", "ctr"), generation_of("ctr.1a2b_00000", "ctr")
    (2, 0)
    """
    parts = _parts(run, sweep)
    assert parts is not None, f"{run} does not belong to sweep {sweep}"
    return parts[1]


def sweep_path(storage: str, sweep: str) -> str:
    """Folder of a sweep."""
    return below(storage, sweep)


def runs_path(storage: str, sweep: str) -> str:
    """Storage of the runs of a sweep's trials.

    >>> runs_path("s3://bucket/runs?region=eu-west-1", "ctr")
    's3://bucket/runs/ctr/runs?region=eu-west-1'
    """
    return below(sweep_path(storage, sweep), RUNS)


def _parts(run: str, sweep: str) -> tuple[str, int] | None:
    prefix = f"{sweep}."
    if not run.startswith(prefix):
        return None
    trial_id, dot, generation = run.removeprefix(prefix).partition(".")
    if not trial_id or (dot and not (generation.isdigit() and generation[0] != "0")):
        return None
    return trial_id, int(generation or 0)
