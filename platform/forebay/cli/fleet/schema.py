"""`forebay job-schema`: the form of job files, for editors."""

from __future__ import annotations

from forebay.cli.output import print_json


def job_schema() -> None:
    """Print the JSON Schema of job files. Editors use it for completion: `forebay job-schema > job.schema.json`."""
    # Imported here: it takes seconds, and the other commands do not need it.
    from forebay.fleet.spec.job_toml import job_schema as schema  # noqa: PLC0415

    print_json(schema())
