"""`forebay fleet explain` and `clusters`: a job's choices, and clusters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import LINE_WIDTH, print_json, print_line, print_table

if TYPE_CHECKING:
    from forebay.fleet.federation.dry_run import TaskPlan
    from forebay.fleet.federation.survey import ClusterRow
    from forebay.fleet.spec.job_spec import JobSpec

COLUMNS = ("cluster", "sku", "market", "nodes", "free", "total", "age", "price/h", "jobs")

FleetFile = Annotated[Path, typer.Option("--fleet", help="Fleet file in TOML: clusters, machines, prices.")]


def explain(
    job: Annotated[Path, typer.Argument(help="Job file in TOML.", metavar="JOB.toml")],
    fleet: FleetFile = Path("fleet.toml"),
    live: Annotated[bool, typer.Option("--live", help="By the room that the clusters have now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a job, rank the clusters, and render it.

    All clusters count as empty. A cluster is asked for its catalogue, unless the fleet file describes it. With
    `--live`, also for its free room, and for the Secrets and ConfigMaps that the job names. Says what the pods of each
    task get, and from where. The arguments are checked against the job file's function, which is not called. With
    `--json`, the rendered RayJobs are part of the document.
    """
    # Imported here: they take seconds, and the other commands do not need them.
    from forebay.fleet.federation.acceptance import Acceptance  # noqa: PLC0415
    from forebay.fleet.federation.dry_run import dry_run  # noqa: PLC0415
    from forebay.fleet.federation.survey import as_seen, described_fleet, figures_for, survey  # noqa: PLC0415
    from forebay.fleet.fleet_file import load_fleet  # noqa: PLC0415
    from forebay.fleet.spec.canonical import key_of  # noqa: PLC0415
    from forebay.fleet.spec.job_toml import load_job_spec  # noqa: PLC0415
    from forebay.fleet.spec.program import check_program  # noqa: PLC0415

    spec = load_job_spec(job)
    for task in spec.task:
        check_program(spec, task, job.absolute().parent)
    known = load_fleet(fleet)
    if live:
        views = survey(known)
        found = as_seen(known, views)
        figures = figures_for(spec, found, views)
    else:
        found, figures = described_fleet(known)
    warn_of_tags(found.images_without_digest(spec))
    verdict = Acceptance(found).foresee(spec)
    submitter = None if verdict.submitter is None else verdict.submitter.name
    plans = dry_run(spec, found, figures, verdict.submitter)
    if as_json:
        whose = {"submitter": submitter, "refused": verdict.refusal}
        print_json({"name": spec.name, "key": key_of(spec), **whose, "tasks": [_facts(plan) for plan in plans]})
        return
    print_line(f"{spec.name}: key {key_of(spec)[:12]}, storage {spec.storage}")
    if verdict.refusal is not None or submitter is not None:
        text = f"submitter {submitter or 'unknown'}{f', by {verdict.by}' if verdict.by else ''}: "
        for line in wrapped(text + (f"refused: {verdict.refusal}" if verdict.refusal else "may run it"), 0):
            print_line(line)
    for plan in plans:
        for line in _lines(spec, plan):
            print_line(line)


def clusters(fleet: FleetFile = Path("fleet.toml"), as_json: AsJson = False) -> None:
    """List the clusters of a fleet.

    Columns: nodes, free and all GPUs (or CPUs), age of the figures, price and jobs. Jobs are those that run + those
    that start. A cluster without an answer is listed with the reason.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.federation.survey import as_seen, rows, survey  # noqa: PLC0415
    from forebay.fleet.fleet_file import load_fleet  # noqa: PLC0415

    known = load_fleet(fleet)
    views = survey(known)
    found = list(rows(as_seen(known, views), views))
    if as_json:
        print_json({"clusters": [asdict(each) for each in found]})
        return
    lines = [line for each in found for line in _row_lines(each)]
    if lines:
        print_table(COLUMNS, lines)
    for each in found:
        if each.fault is not None:
            for line in wrapped(f"{each.cluster}: {each.fault}", 0):
                print_line(line)


def _facts(plan: TaskPlan) -> dict[str, Any]:
    return {
        "task": plan.task.name,
        "choices": [
            {
                name: getattr(choice, name)
                for name in ("cluster", "sku", "market", "workers", "price_per_hour", "reason")
            }
            for choice in plan.placement.choices
        ],
        "refusals": [asdict(refusal) for refusal in plan.placement.refusals],
        "too_large": plan.too_large,
        "ray_job": plan.ray_job,
        "pods": [asdict(fact) for fact in plan.pods],
    }


def _lines(spec: JobSpec, plan: TaskPlan) -> Iterator[str]:
    workers = plan.task.workers
    size = f"{workers.min}" if workers.min == workers.largest else f"{workers.min} to {workers.largest}"
    yield ""
    yield from wrapped(f"task {plan.task.name}, run {spec.run_name(plan.task)}: {size} workers", 0)
    for number, choice in enumerate(plan.placement.choices, start=1):
        price = "" if choice.price_per_hour is None else f", {choice.price_per_hour:.2f}/h for {workers.min}"
        yield from wrapped(f"{number}. {choice.cluster}: {choice.sku}, {choice.market}{price}", 2)
    for refusal in plan.placement.refusals:
        yield from wrapped(f"-  {refusal.cluster}: {refusal.reason}", 2)
    if plan.too_large is not None:
        yield from wrapped(plan.too_large, 2)
    if plan.ray_job is not None:
        yield from wrapped(f"RayJob {plan.ray_job['metadata']['name']}", 2)
        yield from wrapped(f"entrypoint: {plan.ray_job['spec']['entrypoint']}", 4)
    for by in dict.fromkeys(fact.by for fact in plan.pods):
        yield from wrapped(f"its pods get by {by}:", 2)
        for fact in plan.pods:
            if fact.by == by:
                yield from wrapped(f"{fact.what}: {fact.value}", 4)


def _row_lines(row: ClusterRow) -> Iterator[tuple[object, ...]]:
    for number, pool in enumerate(row.pools):
        price = "-" if pool.price_per_hour is None else f"{pool.price_per_hour:.2f}"
        jobs = f"{row.running}+{row.starting}" if number == 0 else ""
        name = row.cluster if number == 0 else ""
        age = "" if number else "-" if row.age_s is None else f"{row.age_s:.0f} s"
        yield name, pool.sku, pool.market, pool.nodes, pool.free, pool.total, age, price, jobs


def warn_of_tags(images: tuple[str, ...]) -> None:
    """Say on standard error which images another push can replace."""
    for image in images:
        for line in wrapped(f"warning: the image {image} has no digest. Write {image}@sha256:... to pin it.", 0):
            print_line(line, err=True)


def wrapped(text: str, indent: int) -> list[str]:
    """Wrap a text to 80 columns."""
    return textwrap.wrap(text, LINE_WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 3))
