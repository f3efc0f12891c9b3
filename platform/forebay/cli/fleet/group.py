"""`forebay fleet`: clusters, controller, and the chart's commands."""

from __future__ import annotations

import typer

from forebay.cli.fleet import chart, explain, jobs, submit

app = typer.Typer(help="Kubernetes clusters: explain, list, control.", no_args_is_help=True)
app.command()(explain.explain)
app.command()(explain.clusters)
app.command()(submit.schema)
app.command()(chart.controller)
app.command()(jobs.rebuild)
app.command(rich_help_panel="Run by the chart")(chart.apply_cluster)
app.command(rich_help_panel="Run by the chart")(chart.delete_cluster)
app.command(rich_help_panel="Run by the chart")(chart.publish_capacity)
