"""Training a job and showing what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from forebay.cli.output import print_json
from forebay.cli.recipe import job_of
from forebay.driver.driver import run
from forebay.driver.plots import write_plots
from forebay.driver.progress import Progress
from forebay.driver.report import show_report


def train_job(path: str, words: Sequence[str], *, driver: str, as_json: bool) -> None:
    """Train a job file; print the result and write its plots."""
    result = run(job_of(path, words), driver, callbacks=[Progress()])
    if as_json:
        print_json(asdict(result) | {"plots": write_plots(result)})
    else:
        show_report(result)
