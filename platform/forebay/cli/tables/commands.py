"""`forebay tables`: plan and export embedding tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.arguments import AsJson, JobFile, Parameters
from forebay.cli.job_command import JobCommand
from forebay.cli.output import only_the_document, print_facts, print_json, print_table
from forebay.cli.settings import NamedRun, RunStorage
from forebay.errors import BadUsage
from forebay.runtime.formatting import bytes_text, share_text

if TYPE_CHECKING:
    from forebay.cli.tables.table_plan import TablePlan


app = typer.Typer(help="Embedding tables: plan their placement, export them for serving.", no_args_is_help=True)


@app.command("plan", cls=JobCommand)
def plan_tables(
    job_file: JobFile,
    parameters: Parameters = None,
    workers: Annotated[
        list[int] | None, typer.Option("--workers", "-w", help="World size. May be repeated.", show_default="the job's")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of the job whose lookups are counted.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show each table's unique ids, and costs of placements.

    Costs are bytes, memory and time. The job trains for some steps in this process, with tables that take no memory and
    are zero. Nothing is saved.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.job_file import job_of  # noqa: PLC0415
    from forebay.cli.tables.table_plan import plan_tables_of  # noqa: PLC0415

    with only_the_document(as_json):
        job = job_of(job_file, parameters or ())
        sizes = workers or [job.start_workers]
        if min(sizes) < 1 or steps < 1:
            raise BadUsage(f"--workers {sizes} --steps {steps}: give numbers of 1 or more.")
        plans = plan_tables_of(job, world_sizes=sizes, steps=steps)
    if as_json:
        print_json({str(size): [_facts(each) for each in found] for size, found in plans.items()})
        return
    for size, found in plans.items():
        _show(size, found, job.data.global_batch)


@app.command("export")
def export_tables(
    name: Annotated[str, typer.Argument(help="Name or folder of a run that trained fb.Table modules.", metavar="RUN")],
    to: Annotated[str, typer.Option("--to", "-o", help="Folder for the tables, on any storage: new or empty.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint to export.", show_default="the newest")
    ] = None,
    storage: RunStorage = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's tables as safetensors and NumPy arrays.

    Needs the memory of a table, twice.
    """
    from forebay.cli.tables.table_export import export_tables_of  # noqa: PLC0415 - imports torch

    named = NamedRun.of(name, storage)
    made = export_tables_of(named.name, to, storage=named.found_in(), step=step)
    if as_json:
        print_json(asdict(made))
        return
    print_facts({"folder": made.folder, "run": f"{made.run}, step {made.step}"})
    print_table(
        ("table", "rows", "dim", "files"),
        [(each.name, f"{each.rows:,}", each.dim, ", ".join(each.files)) for each in made.tables],
    )


def _show(size: int, plans: list[TablePlan], global_batch: int) -> None:
    chosen = [plan.costs[0] for plan in plans]
    memory = sum(plan.memory_bytes(cost.placement) for plan, cost in zip(plans, chosen, strict=True))
    print_facts(
        {
            "workers": size,
            "global batch": global_batch,
            "bytes sent by a rank and step": bytes_text(sum(cost.sent_bytes for cost in chosen)),
            "memory of a rank": bytes_text(memory),
        }
    )
    _print_demand(plans)
    _print_open_tables(plans)
    _print_costs(plans)


def _print_demand(plans: list[TablePlan]) -> None:
    print_table(
        ("table", "rows", "dim", "with state", "lookups a step", "unique a rank", "hottest", "beyond"),
        [
            (
                plan.name,
                f"{plan.demand.rows:,}",
                plan.demand.dim,
                bytes_text(plan.table_bytes),
                f"{plan.lookups:,.0f}",
                f"{plan.demand.unique:,.0f}",
                share_text(plan.hottest),
                f"{plan.bad:,.0f}",
            )
            for plan in plans
        ],
    )


def _print_open_tables(plans: list[TablePlan]) -> None:
    """Print the tables with open vocabularies, if any."""
    opened = [(plan.name, plan.demand.rows, plan.opened) for plan in plans if plan.opened is not None]
    if opened:
        print_table(
            ("open table", "distinct ids", "admitted", "rows at most", "lookups without a row", "bytes at most"),
            [
                (
                    name,
                    f"{each.distinct:,}",
                    f"{each.admitted:,}",
                    f"{rows:,}",
                    share_text(each.shared),
                    bytes_text(each.most_bytes),
                )
                for name, rows, each in opened
            ],
        )


def _print_costs(plans: list[TablePlan]) -> None:
    """Print the cost of each placement, the chosen one first."""
    print_table(
        ("table", "placement", "bytes of a rank and step", "memory of a rank", "ms a step"),
        [
            (
                plan.name if cost is plan.costs[0] else "",
                f"{cost.placement}{' (auto)' if cost is plan.costs[0] else ''}",
                bytes_text(cost.sent_bytes),
                bytes_text(plan.memory_bytes(cost.placement)),
                f"{cost.seconds * 1e3:.2f}",
            )
            for plan in plans
            for cost in plan.costs
        ],
    )


def _facts(plan: TablePlan) -> dict[str, Any]:
    costs = [asdict(cost) | {"memory_bytes": plan.memory_bytes(cost.placement)} for cost in plan.costs]
    return asdict(plan) | {"costs": costs}
