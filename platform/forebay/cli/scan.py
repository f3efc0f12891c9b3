"""`forebay scan`: a dataset's summary and its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from forebay.cli.arguments import AllowLocation, AsJson
from forebay.cli.output import print_facts, print_json, print_table, progress_bar
from forebay.data.filters.skipping import skip_list
from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.saved import save_manifest
from forebay.data.sources.scan import scan as scan_source
from forebay.errors import BadUsage
from forebay.runtime.formatting import bytes_text


def scan(
    uri: Annotated[
        list[str],
        typer.Argument(
            help="A Parquet file, folder or glob: a path, s3://, gs://, hdfs://, ... Or a Delta Lake or Iceberg table. "
            "Several files are one dataset.",
            metavar="URI...",
        ),
    ],
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", help="Only these columns, separated by commas.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Row filter: \"label is not None and day >= '2024-01-31'\".")
    ] = None,
    skip: Annotated[
        Path | None, typer.Option(help="File with names of rows to leave out, one a line: `forebay rows --out`.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(help="Version of a Delta Lake table, or snapshot of an Iceberg table. The newest by default."),
    ] = None,
    partition_type: Annotated[
        list[str] | None, typer.Option(help="Type of a column of folders, such as day=string. May be repeated.")
    ] = None,
    allow_location: AllowLocation = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the manifest (.json or .parquet).")] = None,
    as_json: AsJson = False,
) -> None:
    """Read a dataset's footers, and write its manifest.

    Shows row groups, rows, bytes and schema.
    """
    with progress_bar(hidden=as_json) as bar:
        task = bar.add_task("reading footers", total=None)
        manifest = scan_source(
            uri if len(uri) > 1 else uri[0],
            columns=columns.split(",") if columns else None,
            where=where,
            skip=() if skip is None else skip_list(skip),
            version=version,
            partition_types=dict(_partition_type(text) for text in partition_type or ()),
            allow_locations=allow_location or (),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    path = out or Path(f"{_stem(uri[0] if len(uri) == 1 else uri[0].rpartition('/')[0])}.manifest.json")
    save_manifest(manifest, path)
    facts = _facts(manifest, path)
    if as_json:
        schema = [{"name": field.name, "type": field.type, "nullable": field.nullable} for field in manifest.fields]
        print_json(facts | {"notes": manifest.notes, "schema": schema})
        return
    if manifest.notes:
        facts["notes"] = "; ".join(manifest.notes)
    print_facts(facts | {name: bytes_text(int(str(facts[name]))) for name in ("bytes", "source_bytes")})
    print_table(("column", "type", "nullable"), [(field.name, field.type, field.nullable) for field in manifest.fields])


def _facts(manifest: Manifest, path: Path) -> dict[str, object]:
    facts: dict[str, object] = {
        "manifest": str(path),
        "id": manifest.id,
        "files": len(manifest.files),
        "row_groups": len(manifest),
        "rows": manifest.num_rows,
        "bytes": manifest.num_bytes,
        "source_bytes": int(manifest.source_bytes.sum()),
    }
    if manifest.snapshot:
        facts["snapshot"] = manifest.snapshot
    if kept := manifest.kept:
        facts |= {"where": kept.where, "filtered_rows": kept.filtered_rows, "deleted_rows": kept.deleted_rows}
        facts |= {"skipped_rows": kept.skipped_rows}
    return facts


def _partition_type(text: str) -> tuple[str, str]:
    name, sign, kind = text.rpartition("=")
    if not sign:
        raise BadUsage(f"--partition-type {text!r:.100}: give a column of folders and its type, as day=string.")
    return name, kind


def _stem(uri: str) -> str:
    """Last part of a URI usable as a file name.

    >>> _stem("s3://lake/clicks/"), _stem("data/*.parquet"), _stem("a/b.parquet")
    ('clicks', 'data', 'b')
    """
    parts = [part for part in urlsplit(uri).path.split("/") if part and "*" not in part and "?" not in part]
    return Path(parts[-1]).stem if parts else "data"
