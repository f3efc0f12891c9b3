"""`forebay series`: the series of a data set, and the windows and statistics of a split."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from forebay.cache.disk.disk_cache import DiskCache
from forebay.cache.spec import CacheSpec
from forebay.cli.arguments import AsJson
from forebay.cli.output import print_facts, print_json, print_table
from forebay.errors import InvalidOption
from forebay.formatting import bytes_text
from forebay.loader.sequences.sequences import SequencePart, Sequences
from forebay.manifest.manifest import Manifest
from forebay.manifest.scan import scan
from forebay.transform.features.arrow_types import parse_type
from forebay.transform.features.ragged import is_list
from forebay.transform.sequences.views import Future, Past

_SHORT_RUNS = 8
"""A window touches more blocks than this if runs are shorter than its part: sorting the data first is worth it."""


def series(
    uri: Annotated[str, typer.Argument(help="A Parquet file, folder or glob: a path, s3://, gs://, hdfs://, ...")],
    past: Annotated[int, typer.Option(help="Steps that a model looks back on.")],
    entity: Annotated[str | None, typer.Option(help="Column that names the series. Default: all rows are one.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times. Without it the order of the files.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of the steps, by commas. Default: all numbers.")] = None,
    future: Annotated[int, typer.Option(help="Steps ahead to predict. 0: none.")] = 0,
    gap: Annotated[int, typer.Option(help="Steps between the past and the future.")] = 0,
    stride: Annotated[int, typer.Option(help="Steps between the starts of two windows.")] = 1,
    min_steps: Annotated[int | None, typer.Option(help="Least real steps of the past. Default: all.")] = None,
    max_gap: Annotated[str | None, typer.Option(help="Longest time between two steps of a window, such as 2h.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Cuts by commas: shares (0.6,0.2), steps (8640,11520) or times (2017-07-01).")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Cache folder that keeps the blocks for training.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read all steps once: series, runs, missing values, windows of each part of a split, statistics."""
    manifest = scan(uri)
    names = columns.split(",") if columns else _numbers(manifest, {entity, time})
    made = Sequences(
        manifest,
        entity=entity,
        time=time,
        past=Past(names, steps=past),
        future=Future(names, steps=future, gap=gap) if future else None,
        stride=stride,
        min_steps=min_steps,
        max_gap=int(max_gap) if max_gap and max_gap.isdigit() else max_gap,
        fill=None,
        cache=_open(cache),
    )
    parts = made.split(**_cuts(split)) if split else (made.whole,)
    facts = _facts(made, parts)
    statistics = {name: column.to_dict() for name, column in parts[0].statistics.items()}
    if as_json:
        print_json(facts | {"statistics": statistics})
        return
    print_facts(facts | {"index_bytes": bytes_text(facts["index_bytes"])})
    shown = ("count", "nulls", "mean", "std", "min", "max")
    rows = [(name, *(f"{column[each]:.6g}" for each in shown)) for name, column in statistics.items()]
    print_table(("column", *shown), rows, title="Statistics of the first part")


def _facts(made: Sequences, parts: tuple[SequencePart, ...]) -> dict[str, Any]:
    line = made.series.whole
    steps, runs = np.diff(line.entities), np.diff(line.starts)
    times = made.series.times
    interval = np.median((times[:, 1] - times[:, 0])[runs > 1] / (runs[runs > 1] - 1)) if np.any(runs > 1) else 0
    return {
        "entities": len(steps),
        "steps": line.num_steps,
        "shortest": int(steps.min()),
        "median": float(np.median(steps)),
        "longest": int(steps.max()),
        "runs": len(runs),
        "interval": float(interval) if made.time else None,
        "segments": len(made.series.line.segments) - 1,
        "windows": [part.num_windows for part in parts],
        "index_bytes": parts[0].windows.nbytes,
        "sort_first": bool(line.num_steps / len(runs) < made.shape.length / _SHORT_RUNS),
    }


def _numbers(manifest: Manifest, left_out: set[str | None]) -> list[str]:
    """Columns of numbers, or of lists of them."""
    found = []
    for field in manifest.fields:
        kind: Any = parse_type(field.type)
        kind = kind.value_type if is_list(kind) else kind
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if is_number and field.name not in left_out:
            found.append(field.name)
    if not found:
        raise InvalidOption(f"{manifest.root} has no column of numbers. Name the columns of the steps with --columns.")
    return found


def _cuts(text: str) -> dict[str, Any]:
    """Arguments of `split`.

    >>> _cuts("0.6,0.2"), _cuts("8640"), _cuts("2017-07-01")
    ({'fractions': (0.6, 0.2)}, {'steps': (8640,)}, {'time': ('2017-07-01',)})
    """
    cuts = tuple(cut.strip() for cut in text.split(","))
    if all(cut.isdigit() for cut in cuts):
        return {"steps": tuple(map(int, cuts))}
    try:
        return {"fractions": tuple(map(float, cuts))}
    except ValueError:
        return {"time": cuts}


def _open(path: str | None) -> DiskCache | None:
    return CacheSpec(path=path).open() if path else None
