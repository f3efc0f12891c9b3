"""`forebay scale`, `stop` and `jobs --ray`: control of runs and sweeps.

The cluster is the one at `RAY_ADDRESS`, or the Ray that runs on this machine, including one that a run started for
itself. Ray is imported only where it is used, because the other commands do not need it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from forebay.cli.arguments import AsJson
from forebay.cli.fleet.jobs import answering
from forebay.cli.output import only_the_document, print_json, print_line, print_parts, print_table
from forebay.cli.settings import NAMED, NamedRun, known_storage
from forebay.report.columns import Column, column
from forebay.runtime.formatting import age_text, time_text, workers_text
from forebay.sweep.record.status import SweepStatus
from forebay.sweep.report.live import TrialTable
from forebay.sweep.report.text import value_text
from forebay.sweep.report.trial_columns import TrialRow, status_columns
from forebay.training.runs.status import RunStatus

Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        "-s",
        help="Storage of the run or job: leaves a request there for its driver. Needs no cluster.",
        metavar="URI",
        show_default=f"{NAMED} where the run trains there, or else Ray is asked",
    ),
]
RunName = Annotated[
    str, typer.Argument(help="Name of the run or job, as `forebay jobs` lists it, or its folder.", metavar="RUN")
]


def print_live(*, as_json: bool) -> None:
    """Print the cluster's runs and sweeps.

    Shows state, workers, epoch and rows per second, and the trials of each sweep.
    """
    with _cluster(as_json):
        from forebay.sweep.record.status_actor import list_sweeps  # noqa: PLC0415
        from forebay.training.driver.elastic.client import runs  # noqa: PLC0415

        found, swept = runs(), list_sweeps()
    if as_json:
        print_json({"runs": [asdict(status) for status in found], "sweeps": [asdict(sweep) for sweep in swept]})
        return
    by_name = {status.name: status for status in found}
    for sweep in swept:
        print_parts(Text(headline(sweep)), trial_table(sweep, by_name))
    of_trials = {trial.run for sweep in swept for trial in sweep.trials}
    others = [status for status in found if status.name not in of_trials]
    if others:
        rows = [[each.text(status) for each in RUN_COLUMNS] for status in others]
        print_table([each.title for each in RUN_COLUMNS], rows)
    elif not swept:
        print_line("No run is under way on this cluster.")


def scale(
    run: RunName,
    workers: Annotated[int, typer.Argument(help="Target: the number of workers to train on.", metavar="N")],
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Set the target of a run to N workers.

    Fewer train from the next checkpoint on, more as soon as they are warm.
    """
    named = NamedRun.of(run, storage)
    run = named.name
    if (found := _storage_of(run, named.storage)) is not None:
        _order(found, run, as_json, target=workers)
        return
    with _cluster(as_json):
        from forebay.training.driver.elastic import client as remote_control  # noqa: PLC0415

        before = remote_control.scale(run, workers)
    if as_json:
        print_json({"run": run, "before": before.target, "target": workers, "world_size": before.world_size})
    else:
        print_line(f"{run}: target {before.target} -> {workers} workers; {before.world_size} train now.")


def stop(
    run: RunName,
    reason: Annotated[str, typer.Option(help="Reason, kept in the run's result.")] = "forebay stop",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """End a run or a sweep after the next checkpoint.

    The same name, run again, continues there.

    A trial that is stopped by the name of its run ends for good. Its sweep continues without it.
    """
    named = NamedRun.of(run, storage)
    run = named.name
    if (found := _storage_of(run, named.storage)) is not None:
        _order(found, run, as_json, stop=reason)
        return
    with _cluster(as_json):
        from forebay.sweep.record.status_actor import is_sweep, stop_sweep  # noqa: PLC0415
        from forebay.training.driver.elastic import client as remote_control  # noqa: PLC0415

        asked = stop_sweep(run, reason) if is_sweep(run) else remote_control.stop(run, reason)
    if isinstance(asked, SweepStatus):
        _say_stopped(asked, reason, as_json)
        return
    before = asked
    if as_json:
        print_json({"run": run, "reason": reason, "step": before.step, "path": before.path})
    else:
        print_line(f"{run}: ends at its next checkpoint, after step {before.step}. It stays in {before.path}.")


def _storage_of(name: str, given: str | None) -> str | None:
    """Return the storage by which a run is reached, or None for Ray.

    The known storage counts where the run or job is under way there.
    """
    if given is not None or (known := known_storage()) is None:
        return given
    from forebay.fleet.client.submitted_job import is_under_way  # noqa: PLC0415 - imports what only this needs

    with answering(known):
        return known if is_under_way(known, name) else None


def _order(storage: str, name: str, as_json: bool, *, stop: str | None = None, target: int | None = None) -> None:
    from forebay.fleet.client.submitted_job import SubmittedJob, request_of  # noqa: PLC0415 - imports what only this needs

    with answering(storage):
        if stop is not None and SubmittedJob(storage, name).stop_waiting(stop):
            _say_taken(name, stop, as_json)
            return
        attempt, request = request_of(storage, name, stop=stop, target=target)
    if as_json:
        print_json({"run": name, "attempt": attempt, "stop": request.stop, "target": request.target})
        return
    what = f"ends at its next checkpoint ({stop})" if stop is not None else f"target {target} workers"
    print_line(f"{name}: {what}, requested in its storage. Attempt {attempt} reads it within 15 s.")


def _say_taken(name: str, reason: str, as_json: bool) -> None:
    if as_json:
        print_json({"run": name, "attempt": None, "stop": reason, "target": None})
    else:
        print_line(f"{name}: taken out of the queue ({reason}). Submit it again to continue.")


def _say_stopped(sweep: SweepStatus, reason: str, as_json: bool) -> None:
    if as_json:
        print_json({"sweep": sweep.name, "reason": reason, "path": sweep.path})
    else:
        print_line(f"{sweep.name}: its trials end at their next checkpoints. It stays in {sweep.path}.")


@contextmanager
def _cluster(as_json: bool) -> Iterator[None]:
    """Connect to the cluster for the duration of the block.

    With `as_json`, Ray's output avoids standard output.
    """
    from forebay.training.driver.elastic.client import reach_cluster  # noqa: PLC0415 - Ray is imported with the token

    with only_the_document(as_json), reach_cluster():
        yield


def _workers(status: RunStatus) -> str:
    """Workers of a run, such as `2 -> 4 (1 to 8)`.

    Current number, the target if it differs, the bounds of an elastic job.
    """
    bounds = "" if status.min_workers == status.max_workers else f" ({status.min_workers} to {status.max_workers})"
    return f"{workers_text(status.world_size, status.target)}{bounds}"


def _checkpoint(status: RunStatus) -> str | None:
    if status.last_commit_step is None or status.last_commit_age_s is None:
        return None
    return f"step {status.last_commit_step}, {age_text(status.last_commit_age_s)} ago"


RUN_COLUMNS: tuple[Column[RunStatus], ...] = (
    column("run", lambda status: status.name),
    column("driver", lambda status: status.driver),
    column("state", lambda status: status.state),
    column("workers", _workers),
    column("epoch", lambda status: f"{min(status.epoch + 1, status.epochs)} of {status.epochs}"),
    column("step", lambda status: status.step),
    column("rows/s", lambda status: status.rows_per_s, "{:,.0f}".format),
    column("checkpoint", _checkpoint),
    column("age", lambda status: max(0.0, time.time() - status.started_at), age_text),
)


def headline(sweep: SweepStatus) -> str:
    """Summary line of a sweep.

    Such as `sweep ctr: best auc 0.7312 (a1b2_00003), 4 of 4 slots in use, 2:10 until the deadline`.
    """
    best = (
        "no value yet" if sweep.best is None else f"best {sweep.metric} {value_text(sweep.best)} ({sweep.best_trial})"
    )
    slots = "" if sweep.slots is None else f", {sweep.slots_in_use} of {sweep.slots} slots in use"
    left = sweep.deadline_left_s
    limit = f", {time_text(sweep.elapsed_s)} so far" if left is None else f", {time_text(left)} until the deadline"
    stopping = f", stopping: {sweep.stopping}" if sweep.stopping else ""
    return f"sweep {sweep.name}: {best}{slots}{limit}{stopping}"


def trial_table(sweep: SweepStatus, runs: Mapping[str, RunStatus]) -> Table:
    """Table of trials, the best one in bold.

    `runs` are the running ones, by name.
    """
    table = TrialTable(status_columns(sweep.metric), sweep.metric, best=sweep.best_trial)
    for trial in sweep.trials:
        table.add_trial(TrialRow.of_status(trial, runs.get(trial.run)))
    return table.table
