"""`forebay jobs` and `logs`, and `fleet rebuild`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.fleet.explain import FleetFile, wrapped
from forebay.cli.output import print_json, print_line, print_table
from forebay.cli.settings import NAMED, NamedRun, storage_or_known, storages_or_known
from forebay.errors import BadUsage, ExitCode, ReadFailed
from forebay.runtime.late_import import late
from forebay.storage.credentials import redact

if TYPE_CHECKING:
    from forebay.fleet.client.job_rows import FoundJobs, JobRow
    from forebay.fleet.client.submitted_job import JobStatus, SubmittedJob

JobName = Annotated[str, typer.Argument(help="Name of the job, or its folder.", metavar="JOB")]
Storage = Annotated[
    str | None,
    typer.Option("--storage", "-s", help="Storage of the job, as in its file.", metavar="URI", show_default=NAMED),
]
AsJsonLines = Annotated[
    bool, typer.Option("--json", "-j", help="Print a JSON document per line, and with --follow the state at the end.")
]
Storages = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        "-s",
        help="Storage of jobs, as in their files. May be given several times.",
        metavar="URI",
        show_default=NAMED,
    ),
]
OnRay = Annotated[
    bool, typer.Option("--ray", help="List the runs and sweeps of a Ray cluster: at RAY_ADDRESS, or of this machine.")
]
Journal = Annotated[Path, typer.Option(help="File of the new journal. It must not exist.")]
_CODES = {"fenced": ExitCode.FENCED, "refused": ExitCode.REFUSED}
"""Exit codes of followed jobs by state. Others without success have their own, or have failed."""
_SIGNALLED = 128
"""A shell's exit code of a process that signal `n` ended is 128 + n."""
Html = Annotated[str | None, typer.Option(help="Write one page of all jobs, for a browser.", metavar="FILE")]
Every = Annotated[bool, typer.Option("--all", help="Also older jobs that have ended.")]


def jobs(
    storage: Storages = None, ray: OnRay = False, html: Html = None, every: Every = False, as_json: AsJson = False
) -> None:
    """List submitted jobs, from their storage: all that go on, and the 100 that ended last.

    With `--ray`, the live runs and sweeps of a Ray cluster, also those that were not submitted. With `--html`, one page
    for a browser: first what needs a person.
    """
    if ray:
        if storage:
            raise BadUsage("--ray and --storage exclude each other. Leave out one of them.")
        late("forebay.cli.runs:print_live")(as_json=as_json)
        return
    storages = storages_or_known(storage, " With --ray, a Ray cluster is asked.")
    # Imported here: only this command needs them.
    from forebay.fleet.client.job_rows import MOST_ENDED, JobRows  # noqa: PLC0415

    rows = JobRows(storages, most_ended=None if every else MOST_ENDED, has_lines=html is not None)
    with answering(", ".join(storages)):
        found = rows.read()
    if html is not None:
        from forebay.fleet.client.jobs_page import jobs_page  # noqa: PLC0415
        from forebay.report.page import write_page  # noqa: PLC0415

        page = jobs_page(found.rows, time.time(), num_older=found.num_older)
        print_line(write_page(html, page, "the page of all jobs"))
    elif as_json:
        print_json({"jobs": list(map(_facts, found.rows)), "num_older": found.num_older})
    else:
        _print_jobs(found)


def _print_jobs(found: FoundJobs) -> None:
    from forebay.fleet.client.job_rows import older_text  # noqa: PLC0415 - imports what only this needs

    if found.rows:
        names = ("job", "state", "host", "attempt", "workers", "epoch", "step", "GPU h", "cost")
        print_table(names, list(map(_cells, found.rows)))
    elif not found.num_older:
        print_line("No job was submitted with this storage.")
    told = {"preparing": "prepares", "refused": "is refused:", "unreadable": "cannot be read:"}
    told |= {"starting": "waits:", "lost": "is lost:"}
    for row in found.rows:
        says = told.get(row.state) or ("failed:" if _is_of_storage(row) else None)
        if says and row.why:
            print_line("\n".join(wrapped(f"{row.name} {says} {row.why}", 0)))
    if found.num_older:
        print_line(older_text(found.num_older))


def _is_of_storage(row: JobRow) -> bool:
    """Whether a machine or storage failed, whose disk may have had no room for the log."""
    return row.status is not None and row.status.code in (ExitCode.MACHINE, ExitCode.UNUSABLE_STORAGE)


def _facts(row: JobRow) -> dict[str, object]:
    facts = {"name": row.name, "state": row.state, "why": row.why} if row.status is None else asdict(row.status)
    return facts | {"gpu_hours": row.cost.gpu_hours, "cost": row.cost.amount}


def rebuild(
    journal: Journal,
    storage: Storages = None,
    fleet: FleetFile = Path("fleet.toml"),
    as_json: AsJson = False,
) -> None:
    """Make a controller's journal again, from storage and the clusters.

    Lists the tasks of the fleet's jobs, as a controller that starts with the new journal finds them.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.federation.rebuild import rebuild_file  # noqa: PLC0415
    from forebay.fleet.fleet_file import load_fleet  # noqa: PLC0415

    storages = storages_or_known(storage)
    with answering(", ".join(storages)):
        entries, report = rebuild_file(journal, storages, load_fleet(fleet))
    rows = [
        (each.name, type(each.state).__name__, target.cluster if target else "-", each.state.number or "-")
        for each in entries
        for target in [getattr(each.state, "target", None)]
    ]
    names = ("run", "state", "cluster", "attempt")
    if as_json:
        runs = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({"journal": str(journal), "runs": runs, **asdict(report)})
        return
    if rows:
        print_table(names, rows)
    faults = [f"{name}: {fault}" for name, fault in report.silent.items()]
    faults += [f"{each.cluster} has the RayJob {each.name}, which no job here has" for each in report.unknown]
    for line in (line for fault in faults for line in wrapped(fault, 0)):
        print_line(line)
    print_line(f"journal: {journal}, {len(rows)} tasks")


def logs(
    job: JobName,
    storage: Storage = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Until the job ends. Then print its state, and end with its exit code."),
    ] = False,
    as_json: AsJsonLines = False,
) -> None:
    """Print a job's log, from its storage.

    It is there also after the cluster has ended. Ctrl-C ends this command, and never the job.
    """
    from forebay.fleet.client.submitted_job import SubmittedJob  # noqa: PLC0415 - imports what only this needs

    named = NamedRun.of(job, storage)
    found = storage_or_known(named.storage)
    with answering(found):
        show_log(SubmittedJob(found, named.name), follow=follow, as_json=as_json)


def show_log(job: SubmittedJob, *, follow: bool, as_json: bool = False) -> None:
    """Print a job's log, and with `follow` its state at the end.

    Raises `typer.Exit` for a followed job without success.
    """
    _print_log(job, follow=follow, as_json=as_json)
    if not follow:
        return
    status = job.status()
    if as_json:
        print_json({"status": asdict(status)})
    else:
        print_line(f"{job.name}: {status.state}{': ' + status.why if status.why else ''}")
    if status.state not in ("succeeded", "stopped"):
        raise typer.Exit(_CODES.get(status.state) or _code_of(status))


def _code_of(status: JobStatus) -> int:
    """Exit code of a job without success.

    Of its process, where that is known.
    """
    code = status.code or ExitCode.FAILED
    return code if code > 0 else _SIGNALLED - code


def _print_log(job: SubmittedJob, *, follow: bool, as_json: bool) -> None:
    if as_json:
        for each in job.log_lines(follow=follow):
            print_json(asdict(each))
    else:
        for line in job.logs(follow=follow):
            print_line(line)


@contextmanager
def answering(storage: str) -> Iterator[None]:
    """Raise `ReadFailed` where the storage does not answer."""
    try:
        yield
    except OSError as error:
        raise ReadFailed(
            f"{redact(storage)} does not answer ({redact(str(error))}). Check it, and try again."
        ) from None


def _cells(row: JobRow) -> tuple[object, ...]:
    costs = _amount(row.cost.gpu_hours, 1), _amount(row.cost.amount, 2)
    status = row.status
    if status is None:
        return row.name, row.state, *("-" * 5), *costs
    epoch = f"{min(status.epoch + 1, status.epochs)} of {status.epochs}" if status.epochs else "-"
    host = f"{status.backend} {status.host}".strip()
    known = status.name, status.state, host, status.attempt or "-", status.workers or "-", epoch, status.step
    return *known, *costs


def _amount(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
