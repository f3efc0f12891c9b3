"""`forebay controller`: places the jobs that were submitted to a fleet, and follows them to their ends."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from forebay.cli.fleet.jobs import printable


def controller(
    fleet: Annotated[str, typer.Option(help="TOML file of the clusters.")],
    storage: Annotated[list[str], typer.Option(help="Storage of jobs. May be given several times.")],
    journal: Annotated[str, typer.Option(help="File of what is known. It may be lost.")] = ":memory:",
    job: Annotated[str | None, typer.Option(help="Name of the only job to follow. Ends with it.")] = None,
) -> None:
    """Place jobs that were submitted with --backend fleet, until the process is ended.

    Several controllers may run, and each may be killed: claims in storage decide between them.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.clusters.fleet import load_fleet  # noqa: PLC0415
    from forebay.fleet.federation.controller import FleetController  # noqa: PLC0415
    from forebay.fleet.lifecycle.journal import JobJournal  # noqa: PLC0415
    from forebay.fleet.lifecycle.states import JobQueued  # noqa: PLC0415
    from forebay.storage.credentials import redact  # noqa: PLC0415

    known = JobJournal(journal)
    found = FleetController(load_fleet(fleet), storage, known, only=job)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    shown: dict[str, str] = {}
    while not ended.is_set():
        try:
            is_left = found.step()
        except OSError as error:
            typer.echo(f"a storage does not answer ({redact(str(error))}); the next round tries again", err=True)
            is_left = True
        for entry in known.entries():
            reasons = known.reasons(entry.name)
            waits = found.reasons(entry.name) if isinstance(entry.state, JobQueued) else ()
            text = "; ".join(waits) or (reasons[-1].why if reasons else "it was submitted")
            if shown.get(entry.name) != text:
                shown[entry.name] = text
                typer.echo(f"{entry.name}: {printable(text)}")
        if job is not None and not is_left:
            return
        found.wait(ended)
