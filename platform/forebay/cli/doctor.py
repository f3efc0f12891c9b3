"""`forebay doctor`: the bottleneck at which a job stands."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.arguments import AsJson, JobFile, Parameters, refuse_folder
from forebay.cli.output import only_the_document, print_json, print_line, progress_bar

if TYPE_CHECKING:
    from forebay.doctor.diagnose import Diagnosis
    from forebay.doctor.rounds.examination import Progress


def doctor(
    job: JobFile,
    parameters: Parameters = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            help="Ranks on this machine: one runs, with its part of each batch.",
            show_default="the job's",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time of the measurement. Slow steps take longer.")] = 60.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write an HTML page with a picture to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the stage that limits a job, in a minute.

    Stages are network, transform, gather, copy and compute. The job runs in five ways. The job's run folder and its
    cache are not touched. Nothing is saved.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.job_file import job_of  # noqa: PLC0415
    from forebay.doctor.diagnose import ExaminationOptions, diagnose  # noqa: PLC0415
    from forebay.doctor.page import page_of  # noqa: PLC0415
    from forebay.doctor.text import lines_of  # noqa: PLC0415
    from forebay.report.page import write_page  # noqa: PLC0415

    refuse_folder(out)
    with only_the_document(as_json):
        made = job_of(job, parameters or ())
        with _ended_like_an_interrupt(), _shown() as progress:
            options = ExaminationOptions(workers=workers, seconds=seconds, progress=progress)
            diagnosis = diagnose(made, options)
    if as_json:
        print_json(facts_of(diagnosis) | {"page": None if out is None else str(out)})
    else:
        print_line("\n".join(lines_of(diagnosis)))
    if out is not None:  # last: a page that cannot be written loses no measurement
        text = page_of(diagnosis, f"forebay doctor {Path(job).name}")
        write_page(str(out), text, "the page of the examination", "Give another --out.")
        if not as_json:
            print_line(f"\npage: {out}")


def facts_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis for programs.

    It has the verdict, seconds of a step by way and round, gains, and the measurements behind them.
    """
    from forebay.doctor.findings.ways import RoundKind, Way  # noqa: PLC0415
    from forebay.doctor.text import sentence_of  # noqa: PLC0415

    found = diagnosis.measurements
    return {
        "sentence": sentence_of(diagnosis),
        **asdict(diagnosis.verdict),
        "step_s": {way: list(found.step_s(RoundKind(way=way)).values()) for way in Way if found.of(RoundKind(way=way))},
        "gains": [asdict(gain) for gain in diagnosis.gains],
        "making": found.making,
        "contention": None if found.contention is None else asdict(found.contention),
        "gpu_idle": found.gpu_idle,
        "job": asdict(found.facts),
        "rounds": [asdict(each) for each in found.rounds],
    }


@contextmanager
def _shown() -> Iterator[Progress]:
    """Progress on standard error."""
    with progress_bar() as bar:
        task = bar.add_task("examination", total=1)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


@contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """Treat SIGTERM in the block as Ctrl-C.

    So nothing is left behind. Then it ends the process, as without this.
    """
    received, before = list[int](), signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_IGN)  # a second one must not end the cleaning up
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if received:
            signal.raise_signal(signal.SIGTERM)
