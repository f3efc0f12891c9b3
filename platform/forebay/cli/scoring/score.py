"""A scoring run on the command line: progress on standard error, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import typer

from forebay.cli.job_file import values_of
from forebay.cli.output import only_the_document, print_facts, print_json
from forebay.cli.preparation.display import shown_preparations
from forebay.job.recipe import call_for
from forebay.score.pool.tally import ScoreProgress
from forebay.score.request import ScoreRequest
from forebay.score.scoring import score_rows

INTERRUPTED = 130
_LINE_EVERY_S = 10.0


def run_score(words: Sequence[str], *, as_json: bool) -> None:
    """Run `forebay score`. Raises as `score_rows`."""
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
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(result.facts())
        return
    print_facts(result.facts())


def request_of(words: Sequence[str]) -> ScoreRequest:
    """Request of `name=value` arguments. Raises `BadJob` for one that is unknown, missing or of a wrong type."""
    made: ScoreRequest = call_for((ScoreRequest,), ScoreRequest, values_of(words), called="forebay score")
    return made


def progress_line() -> Callable[[ScoreProgress], None]:
    """Function that shows progress on standard error: one line that changes, or a new one every 10 s in a file."""
    shown = [0.0, 0.0]

    def show(progress: ScoreProgress) -> None:
        is_last = progress.rows_done == progress.rows
        if sys.stderr.isatty():
            text = str(progress)
            sys.stderr.write(f"\r{text:<{int(shown[1])}}" + "\n" * is_last)
            shown[1] = len(text)
        elif is_last or time.monotonic() - shown[0] >= _LINE_EVERY_S:
            shown[0] = time.monotonic()
            sys.stderr.write(f"{progress}\n")
        sys.stderr.flush()

    return show
