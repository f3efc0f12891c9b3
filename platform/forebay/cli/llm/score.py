"""Scoring on the command line, with progress and a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import typer

from forebay.cli.job_file import values_of
from forebay.cli.output import only_the_document, print_facts, print_json, print_table
from forebay.cli.preparation_display import shown_preparations
from forebay.errors import ExitCode
from forebay.llm.score.batch_sweep import sweep_batches, write_batch_page
from forebay.llm.score.pool.counters import ScoreProgress
from forebay.llm.score.report import COLUMNS, worker_rows
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.result import ScoreResult
from forebay.llm.score.scoring import score_rows
from forebay.report.console import SafeConsole
from forebay.runtime.formatting import time_text
from forebay.training.job.coercion import coerce
from forebay.training.job.recipe import call_for

_LINE_EVERY_S = 10.0


def run_score(words: Sequence[str], *, as_json: bool) -> None:
    """Run `forebay llm score`. Raises as `score_rows`."""
    request = request_of(words)
    last: list[ScoreProgress] = []
    show = progress_line()

    def listener(progress: ScoreProgress) -> None:
        last[:] = [progress]
        show(progress)

    try:
        with only_the_document(as_json), shown_preparations():
            result = score_rows(request, listener=listener)
    except KeyboardInterrupt:
        done = f"{last[0].rows_done:,} of {last[0].rows:,} rows are" if last else "nothing is"
        sys.stderr.write(f"\nstopped: {done} written to {request.to}. The same command goes on from there.\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(result.facts())
        return
    print_result(result)


def run_batch_sweep(words: Sequence[str], sizes: str, *, as_json: bool) -> None:
    """Run `forebay llm score --sweep-batch`.

    Writes a page into the folder of the request. Raises as `sweep_batches`.
    """
    request, batches = request_of(words), [coerce("sweep-batch", size, int) for size in sizes.split(",") if size]
    found = []
    with only_the_document(as_json), shown_preparations():
        for each in sweep_batches(request, batches):
            found.append(each)
            sys.stderr.write(f"batch {each.batch}: {each.requests_per_s:.1f} requests/s\n")
    page = write_batch_page(found, request.to)
    if as_json:
        print_json({"page": page, "batches": [asdict(each) for each in found]})
        return
    rows = [
        (each.batch, each.rows, f"{each.requests_per_s:.1f}", f"{each.output_tokens_per_s:.0f}", f"{each.seconds:.2f}")
        for each in found
    ]
    print_table(("batch", "rows", "requests/s", "out tokens/s", "seconds"), rows, justify="right")
    print_facts({"page": page})


def print_result(result: ScoreResult) -> None:
    """Print the table of a run and its folder."""
    if result.rows_scored:
        print_table(COLUMNS, worker_rows(result), justify="right")
    lost = f", {result.workers_lost} workers were lost" if result.workers_lost else ""
    print_facts(
        {
            "answers": result.folder,
            "rows": f"{result.rows:,}, this run scored {result.rows_scored:,} in {time_text(result.seconds)}{lost}",
            "errors": f"{result.errors:,}",
        }
    )


def request_of(words: Sequence[str]) -> ScoreRequest:
    """Parse `name=value` arguments to a request.

    Raises `BadJob` for an unknown, missing or mistyped one.
    """
    made: ScoreRequest = call_for((ScoreRequest,), ScoreRequest, values_of(words), called="forebay llm score")
    return made


def progress_line() -> Callable[[ScoreProgress], None]:
    """Function that shows progress on standard error.

    One line that changes, or in a file a new line every 10 s.
    """
    shown = [0.0, 0.0]
    # A line that is wrapped would stay.
    width = SafeConsole(stderr=True).width - 1

    def show(progress: ScoreProgress) -> None:
        is_last = progress.rows_done == progress.rows
        if sys.stderr.isatty():
            text = f"{progress!s:.{width}}"
            sys.stderr.write(f"\r{text:<{int(shown[1])}}" + "\n" * is_last)
            shown[1] = len(text)
        elif is_last or time.monotonic() - shown[0] >= _LINE_EVERY_S:
            shown[0] = time.monotonic()
            sys.stderr.write(f"{progress}\n")
        sys.stderr.flush()

    return show
