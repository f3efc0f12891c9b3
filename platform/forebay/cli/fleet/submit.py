"""`forebay submit` and `forebay fleet schema`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.fleet.explain import FleetFile, explain, warn_of_tags, wrapped
from forebay.cli.fleet.jobs import show_log
from forebay.cli.output import print_json, print_line
from forebay.cli.settings import known_storage
from forebay.errors import ExitCode, InvalidJobSpec
from forebay.storage.filesystem import resolve

Backend = Annotated[
    str,
    typer.Option(help="local (this machine), ray (a dashboard), slurm, or fleet (Kubernetes, by a controller)."),
]
Address = Annotated[str, typer.Option(help="Dashboard of the Ray cluster, http://HEAD:8265.", metavar="URL")]


def submit(
    job: Annotated[
        str, typer.Argument(help="Job file in TOML. `forebay fleet schema` describes it.", metavar="JOB.toml")
    ],
    backend: Backend = "local",
    address: Address = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what the job writes, until it ends, as `forebay logs -f`.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Accept changes of a job of this name that has ended.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Start nothing: as `forebay fleet explain`, or with slurm the batch script.",
        ),
    ] = False,
    fleet: FleetFile = Path("fleet.toml"),
    as_json: AsJson = False,
) -> None:
    """Start a job, unless it runs or is done.

    It goes on when this command or this machine ends. The same job submitted twice is one job. Ctrl-C never ends a job
    that was placed.
    """
    if dry_run and backend == "slurm":
        _show_script(Path(job))
        return
    if dry_run:
        explain(Path(job), fleet, as_json=as_json)
        return
    from forebay.fleet.client.submit import submit as submit_job  # noqa: PLC0415 - imports what only this needs
    from forebay.fleet.spec.job_toml import load_job_spec  # noqa: PLC0415

    if backend == "fleet" and fleet.is_file():
        _require_room(Path(job), fleet)
    known_storage()  # a fault of the user's file is found before the job starts
    try:
        made = submit_job(job, backend, address=address, replace_spec=replace)
        status = made.status()
    except KeyboardInterrupt:
        spec = load_job_spec(job)
        print_line(_after_interrupt(spec.storage, spec.name), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(asdict(status) | {"path": made.path})
        return
    print_line(f"{made.name}: {status.state} on {status.backend} {status.address}".rstrip())
    if status.why:
        print_line("\n".join(wrapped(status.why, 0)))
    print_line(f"folder: {made.path}")
    if not follow:
        print_line(f"next: {_next_line(made.submission.spec.storage, made.name)}")
        return
    try:
        show_log(made, follow=True)
    except KeyboardInterrupt:
        print_line(f"{made.name} was placed and goes on.", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def schema() -> None:
    """Print the JSON Schema of job files.

    Editors use it for completion: `forebay fleet schema > job.schema.json`.
    """
    # Imported here: it takes seconds, and the other commands do not need it.
    from forebay.fleet.spec.job_toml import job_schema  # noqa: PLC0415

    print_json(job_schema())


def _show_script(job: Path) -> None:
    """Print the batch script of a job."""
    from forebay.fleet.client.slurm_backend import script_of  # noqa: PLC0415
    from forebay.fleet.client.submission import Submission  # noqa: PLC0415
    from forebay.fleet.spec.job_toml import load_job_spec  # noqa: PLC0415
    from forebay.fleet.spec.program import check_program  # noqa: PLC0415

    spec, folder = load_job_spec(job), job.absolute().parent
    for task in spec.task:
        check_program(spec, task, folder)
    shown = Submission(spec=spec, number=1, backend="slurm", token="", folder=str(folder))
    for line in script_of(shown).splitlines():
        print_line(line)


def _require_room(job: Path, fleet: Path) -> None:
    """Refuse a job that no cluster could start.

    Without a fleet file here, only the controller can tell.
    """
    from forebay.fleet.federation.acceptance import Acceptance  # noqa: PLC0415
    from forebay.fleet.federation.survey import as_seen, figures_for, require_room, survey  # noqa: PLC0415
    from forebay.fleet.fleet_file import load_fleet  # noqa: PLC0415
    from forebay.fleet.spec.job_toml import load_job_spec  # noqa: PLC0415

    spec, known = load_job_spec(job), load_fleet(fleet)
    views = survey(known)
    found = as_seen(known, views)
    if (refusal := Acceptance(found).foresee(spec).refusal) is not None:
        raise InvalidJobSpec(f"{spec.name} is refused: {refusal}")
    warn_of_tags(found.images_without_digest(spec))
    require_room(spec, found, figures_for(spec, found, views))


def _after_interrupt(storage: str, name: str) -> str:
    """Return what to do after Ctrl-C."""
    from forebay.fleet.client.submission import JobFiles  # noqa: PLC0415

    if JobFiles(storage=storage, name=name).newest() is None:
        return f"{name} was not placed. Submit it again."
    return f"{name} was placed and goes on.\n{_next_line(storage, name)}"


def _next_line(storage: str, name: str) -> str:
    """Return the command that follows the job."""
    known = known_storage()
    is_known = known is not None and resolve(known).uri == resolve(storage).uri
    return f"forebay logs {name} --follow{'' if is_known else f' --storage {shlex.quote(storage)}'}"
