"""`forebay series`: series, windows and statistics of a split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import print_facts, print_json, print_table
from forebay.cli.preparation_display import shown_preparations
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.sources.scan import scan
from forebay.data.transform.features.ragged import is_list
from forebay.data.windows.sequence_part import SequencePart
from forebay.data.windows.sequences import Sequences
from forebay.data.windows.times import duration_text, duration_ticks
from forebay.data.windows.views import History, Horizon
from forebay.errors import InvalidOption
from forebay.runtime.formatting import bytes_text

_SHOWN = ("count", "nulls", "mean", "std", "min", "max")
_COUNTS = ("count", "nulls")
_LONGEST_INTERVAL = 6


def series(
    uri: Annotated[str, typer.Argument(help="A Parquet file, folder or glob: a path, s3://, gs://, hdfs://, ...")],
    past: Annotated[int, typer.Option(help="Steps that a model looks back on.")],
    entity: Annotated[str | None, typer.Option(help="Column that names the series. Default: all rows are one.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times. Without it the order of the files.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", "-c", help="Columns of the steps, by commas. Default: all numbers.")
    ] = None,
    future: Annotated[int, typer.Option(help="Steps ahead to predict. 0: none.")] = 0,
    gap: Annotated[int, typer.Option(help="Steps between the past and the future.")] = 0,
    stride: Annotated[int, typer.Option(help="Steps between the starts of two windows.")] = 1,
    min_steps: Annotated[int | None, typer.Option(help="Least real steps of the past. Default: all.")] = None,
    max_gap: Annotated[str | None, typer.Option(help="Longest time between two steps of a window, such as 2h.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Cuts by commas: shares (0.6,0.2), steps (8640,11520) or times (2017-07-01).")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Cache folder that keeps the blocks for training.")] = None,
    arrange: Annotated[
        str | None, typer.Option(help="Folder or URI: sort the data by entity and time into it, once, and read that.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the series, windows and statistics of a dataset.

    Reads all steps once: series, runs, missing values, windows of each part of a split, statistics.
    """
    manifest = scan(uri)
    names = columns.split(",") if columns else _numbers(manifest, {entity, time})
    made = Sequences(
        manifest,
        entity=entity,
        time=time,
        past=History(names, steps=past),
        future=Horizon(names, steps=future, gap=gap) if future else None,
        stride=stride,
        min_steps=min_steps,
        max_gap=int(max_gap) if max_gap and max_gap.isdigit() else max_gap,
        fill=None,
        cache=_open(cache),
    )
    with shown_preparations():
        if arrange:
            made = made.arrange(arrange)
        parts = made.split(**_cuts(split)) if split else (made.whole,)
        statistics = {name: column.to_dict() for name, column in parts[0].statistics.items()}
    facts = _facts(made, parts)
    if as_json:
        print_json(facts | {"statistics": statistics})
        return
    print_facts(_texts(made, facts))
    rows = [(name, *_cells(column)) for name, column in statistics.items()]
    print_table(("column", *_SHOWN), rows, title="Statistics of the first part" if split else "Statistics")


def _facts(made: Sequences, parts: tuple[SequencePart, ...]) -> dict[str, Any]:
    line = made.series.whole
    steps = np.diff(line.entities)
    return {
        "data": made.manifest.root,
        "entities": len(steps),
        "steps": line.num_steps,
        "shortest": int(steps.min()),
        "median": float(np.median(steps)),
        "longest": int(steps.max()),
        "runs": len(line.block),
        "interval": _interval(made),
        "segments": len(made.series.line.segments) - 1,
        "windows": [part.num_windows for part in parts],
        "index_bytes": parts[0].windows.nbytes,
        "arrange_first": made.needs_arranging,
    }


def _interval(made: Sequences) -> int | None:
    """Typical time between steps, in time units.

    Median over the runs of the mean distance of their steps.
    """
    steps, times = np.diff(made.series.whole.starts), made.series.times
    is_long = steps > 1
    if made.time is None or not np.any(is_long):
        return None
    return round(float(np.median((times[:, 1] - times[:, 0])[is_long] / (steps[is_long] - 1))))


def _texts(made: Sequences, facts: Mapping[str, Any]) -> dict[str, str]:
    """The same facts for people."""
    lengths = f"{facts['longest']} steps"
    if facts["shortest"] < facts["longest"]:
        lengths = f"{facts['shortest']} to {lengths}, median {facts['median']:.0f}"
    windows = [f"{count:,}" for count in facts["windows"]]
    texts = {
        "data": facts["data"],
        "series": f"{facts['entities']:,} of {lengths}",
        "steps": f"{facts['steps']:,}",
        "interval": "-" if facts["interval"] is None else _interval_text(facts["interval"], made.time_type()),
        "runs": f"{facts['runs']:,} of {facts['steps'] / facts['runs']:.1f} steps on average",
    }
    if made.max_gap_ticks is not None:
        gaps = facts["segments"] - facts["entities"]
        texts["gaps"] = f"{gaps:,} longer than {duration_text(made.max_gap_ticks, made.time_type())}"
    texts["windows"] = windows[0] if len(windows) == 1 else f"{', '.join(windows)} in the parts of the split"
    texts["index"] = bytes_text(facts["index_bytes"])
    texts["arrange first"] = "yes: runs are short, add --arrange INTO" if facts["arrange_first"] else "no"
    return texts


def _interval_text(ticks: int, column: pa.DataType) -> str:
    """Short text of an interval.

    With three digits where the whole number is long.

    >>> _interval_text(3_600_000_000, pa.timestamp("us")), _interval_text(3_661_234_567, pa.timestamp("us"))
    ('1h', 'about 1.02h')
    """
    text = duration_text(ticks, column)
    if len(text) <= _LONGEST_INTERVAL or pa.types.is_integer(column):
        return text
    for unit in ("d", "h", "min", "s", "ms", "us"):
        if ticks >= (size := duration_ticks("interval", f"1{unit}", column)):
            return f"about {ticks / size:.3g}{unit}"
    return text


def _cells(column: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{column[name]:,}" if name in _COUNTS else f"{column[name]:.6g}" for name in _SHOWN)


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
