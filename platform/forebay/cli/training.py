"""Training a job and showing what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from forebay.cli.output import only_the_document, print_json
from forebay.cli.recipe import job_of
from forebay.driver.driver import named_driver, run
from forebay.driver.plots import write_plots
from forebay.driver.progress import Progress
from forebay.driver.report import show_report


def train_job(path: str, words: Sequence[str], *, driver: str, as_json: bool) -> None:
    """Train a job file; print the result and write its plots."""
    chosen = named_driver(driver)  # first: a job may take minutes to write its data
    with only_the_document(as_json):
        result = run(job_of(path, words), chosen, callbacks=[Progress()])
        plots = write_plots(result) if as_json else []
    if as_json:
        print_json(asdict(result) | {"plots": plots})
    else:
        show_report(result)
