"""`forebay warm`: fill caches before a job needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.arguments import AsJson, JobFile, Parameters
from forebay.cli.output import print_line
from forebay.errors import ExitCode


def warm(
    job: JobFile,
    parameters: Parameters = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Every node of the Ray cluster, not this one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read, transform and cache a job's data, without training.

    Training and held-out data.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.cli.warm_cache import warm_job  # noqa: PLC0415

    if not warm_job(job, parameters or (), all_nodes=all_nodes, as_json=as_json):
        print_line("Some blocks did not fit. Raise the cache's quota, or free space on its disk.", err=True)
        raise typer.Exit(ExitCode.FAILED)
