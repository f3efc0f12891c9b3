"""`forebay fleet`: submitted jobs, clusters, and the chart's commands."""

from __future__ import annotations

import typer

from forebay.cli.fleet import chart, explain, jobs, submit

app = typer.Typer(help="Submitted jobs and Kubernetes clusters: list, follow, explain, control.", no_args_is_help=True)
app.command()(jobs.jobs)
app.command()(jobs.watch)
app.command()(jobs.logs)
app.command()(explain.explain)
app.command()(explain.clusters)
app.command()(submit.schema)
app.command()(chart.controller)
app.command(rich_help_panel="Run by the chart")(chart.apply_cluster)
app.command(rich_help_panel="Run by the chart")(chart.delete_cluster)
app.command(rich_help_panel="Run by the chart")(chart.publish_capacity)
