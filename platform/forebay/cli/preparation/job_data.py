"""Preparation of the data of a job file, without training."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.cli.job_file import job_or_sweep_of
from forebay.cli.preparation.display import shown_preparations
from forebay.data.manifest.prepared import Prepared
from forebay.sweep.sweep import Sweep


def prepare_job_data(path: str, words: Sequence[str]) -> list[Prepared]:
    """Datasets that the job of a file prepares or reuses. For a sweep, those of one possible trial."""
    with shown_preparations() as display:
        made = job_or_sweep_of(path, words)
        if isinstance(made, Sweep):
            from forebay.sweep.setup import prepare  # noqa: PLC0415 - Ray Tune takes seconds to import

            prepare(made)
    return display.found
