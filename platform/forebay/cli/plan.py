"""`forebay plan`: facts of a plan, shares of a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, cast

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray

from forebay.cli.arguments import AllowLocation, AsJson, Parameters
from forebay.cli.output import only_the_document, print_facts, print_json, print_line, print_table
from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.saved import load_manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.order import Last, order_digest
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.plan.shuffle_quality import FULL_TRAVEL, ShuffleQuality, shuffle_quality
from forebay.errors import BadUsage, InvalidOption, WrongType, whole_number
from forebay.world import World


def plan(
    manifest: Annotated[str, typer.Argument(help="A manifest written by `forebay scan`. With --mixture, a job file.")],
    parameters: Parameters = None,
    seed: Annotated[int, typer.Option(help="Any number from 0. 0 is a seed too.")] = 0,
    epoch: Annotated[int, typer.Option(help="From 0.")] = 0,
    world: Annotated[int, typer.Option(help="Number of ranks that share the batches.")] = 1,
    batch: Annotated[int, typer.Option("--batch", "-b", help="Rows of a global batch.")] = 8192,
    lanes: Annotated[int | None, typer.Option(help="Lanes of the plan.", show_default="from the data")] = None,
    shuffle_rows: Annotated[
        int | None, typer.Option(help="Rows of a lane shuffled together.", show_default="from the lanes")
    ] = None,
    shuffle: Annotated[bool, typer.Option(help="Shuffle the rows.")] = True,
    last: Annotated[str, typer.Option(help="balance or drop.")] = "balance",
    digest: Annotated[bool, typer.Option("--hash", help="Print one SHA-256 of the epoch's global batches.")] = False,
    mixture: Annotated[
        bool, typer.Option("--mixture", help="Show the rows of each dataset of a job's mixture, epoch by epoch.")
    ] = False,
    quality: Annotated[bool, typer.Option("--quality", help="Compare the epoch's shuffle with a full one.")] = False,
    label: Annotated[
        str | None, typer.Option(help="With --quality: a numeric column whose spread over batches is compared.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="LANES:SHUFFLE_ROWS of another plan to compare, e.g. 8:4096 or 8: or :4096. Repeatable."),
    ] = None,
    allow_location: AllowLocation = None,
    as_json: AsJson = False,
) -> None:
    """Show a plan's facts, or an epoch's hash.

    Reads no data, but for --label. `forebay rows` shows rows.
    """
    if mixture:
        _show_mixture(manifest, parameters or (), as_json=as_json)
        return
    if parameters:
        raise BadUsage(f"{parameters[0]!r} is a parameter of a job file. Add --mixture, or leave it out.")
    whole_number("--epoch", epoch)
    built = build_plan(
        load_manifest(manifest, allow_location or ()),
        seed=seed,
        lanes=lanes,
        shuffle_rows=shuffle_rows,
        shuffle=shuffle,
    )
    policy = cast(Last, last)  # The plan refuses other values.
    if digest:
        value = order_digest(built, epoch=epoch, global_batch=batch, last=policy, world_size=world)
        print_json({"plan": built.id, "epoch": epoch, "hash": value}) if as_json else print_line(value)
        return
    if compare:
        pairs = [_setting(word) for word in compare]
        others = [build_plan(built.manifest, seed=seed, lanes=a, shuffle_rows=b, shuffle=shuffle) for a, b in pairs]
        _compare([built, *others], epoch, batch, label, as_json=as_json)
        return
    if quality or label is not None:
        _show_quality(built, epoch, batch, label, as_json=as_json)
        return
    built.owned_lanes(World(size=world))
    facts = {"plan": built.id, "rows": built.num_rows, "lanes": built.lanes, "largest_world": built.lanes}
    facts |= {"shuffle_rows": built.shuffle_rows, "batches": built.num_batches(batch, last=policy)}
    print_json(facts) if as_json else print_facts(facts)


def _show_quality(plan: Plan, epoch: int, batch: int, label: str | None, *, as_json: bool) -> None:
    labels = None if label is None else _read_numbers(plan.manifest, label)
    found = shuffle_quality(plan, global_batch=batch, epoch=epoch, labels=labels)
    facts = {"plan": plan.id, "lanes": plan.lanes, "shuffle_rows": plan.shuffle_rows, "batch": batch, "epoch": epoch}
    if as_json:
        print_json(facts | asdict(found) | {"full_travel": FULL_TRAVEL})
        return
    print_facts(facts)
    rows = [
        ("distance a row travels, share of all rows", f"{found.travel:.3f}", f"{FULL_TRAVEL:.3f}"),
        ("row groups in a batch", f"{found.row_groups:.1f}", f"{found.full_row_groups:.1f}"),
    ]
    if found.label_variance is not None:
        rows.append((f"variance of a batch's mean {label}", f"{found.label_variance:.2f}x", "1.00x"))
    if found.label_autocorrelation is not None:
        rows.append((f"autocorrelation of the mean {label}", f"{found.label_autocorrelation:.2f}", "0.00"))
    print_table(("", "this plan", "full shuffle"), rows)


def _setting(word: str) -> tuple[int | None, int | None]:
    """Lanes and `shuffle_rows`.

    An empty part is chosen from the data.
    """
    lanes, colon, shuffle_rows = word.partition(":")
    if not colon or not all(part.isdecimal() or not part for part in (lanes, shuffle_rows)):
        raise BadUsage(f"--compare {word}: give LANES:SHUFFLE_ROWS, e.g. 8:4096, 8: or :4096.", compare=word)
    return (int(lanes) if lanes else None), (int(shuffle_rows) if shuffle_rows else None)


def _compare(plans: Sequence[Plan], epoch: int, batch: int, label: str | None, *, as_json: bool) -> None:
    labels = None if label is None else _read_numbers(plans[0].manifest, label)
    found = [shuffle_quality(each, global_batch=batch, epoch=epoch, labels=labels) for each in plans]
    if as_json:
        settings = [{"plan": each.id, "lanes": each.lanes, "shuffle_rows": each.shuffle_rows} for each in plans]
        figures = [setting | asdict(one) for setting, one in zip(settings, found, strict=True)]
        print_json({"batch": batch, "epoch": epoch, "full_travel": FULL_TRAVEL, "plans": figures})
        return
    rows = [
        (str(each.lanes), str(each.shuffle_rows), f"{one.travel:.3f}", f"{one.row_groups:.1f}", *_of_label(one))
        for each, one in zip(plans, found, strict=True)
    ]
    full = ("1.00x", "0.00") if labels is not None else ("-", "-")
    rows.append(("full", "shuffle", f"{FULL_TRAVEL:.3f}", f"{found[0].full_row_groups:.1f}", *full))
    print_table(("lanes", "shuffle rows", "travel", "row groups", "variance", "autocorrelation"), rows)


def _of_label(found: ShuffleQuality) -> tuple[str, str]:
    variance, correlation = found.label_variance, found.label_autocorrelation
    return "-" if variance is None else f"{variance:.2f}x", "-" if correlation is None else f"{correlation:.2f}"


def _read_numbers(manifest: Manifest, column: str) -> NDArray[np.float64]:
    """Read a column of all rows, float64 [rows].

    Rows are in the order of the files. A null is NaN.
    """
    reader = RowGroupReader(manifest)
    parts = [reader.decode(reader.fetch(index, [column])).column(0) for index in range(len(manifest))]
    kind = parts[0].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise WrongType(f"column {column!r} is {kind}, and a number is needed. Give a numeric column.", column=column)
    return np.concatenate([part.cast(pa.float64()).to_numpy() for part in parts])


def _show_mixture(path: str, words: Sequence[str], *, as_json: bool) -> None:
    # Imported here because torch takes seconds to import and the other forms of the command do not need it.
    from forebay.cli.job_file import job_of  # noqa: PLC0415

    with only_the_document(as_json):
        job = job_of(path, words)
        job.data.validate_columns()
    plan = job.data.plan
    if not isinstance(plan, Mixture):
        raise InvalidOption(f"The job in {path} trains on {plan}, which mixes nothing. Leave --mixture out.")
    epochs = [_mixture_epoch(plan, epoch) for epoch in range(job.epochs)]
    if as_json:
        print_json({"plan": plan.id, "rows": plan.num_rows, "lanes": plan.lanes, "epochs": epochs})
        return
    print_facts({"plan": plan.id, "rows": plan.num_rows, "lanes": plan.lanes, "largest_world": plan.lanes})
    cells = [
        (epoch, name, each["rows"], f"{each['share']:.4f}", f"{each['own_epochs']:.3f}")
        for epoch, sources in enumerate(epochs)
        for name, each in sources.items()
    ]
    print_table(("epoch", "dataset", "rows", "share", "own epochs"), cells)


def _mixture_epoch(plan: Mixture, epoch: int) -> dict[str, dict[str, float]]:
    """Rows and share of each dataset in an epoch.

    Also its own epochs, from the start of the run to the end of this epoch.
    """
    before, after = plan.counts(epoch, 0), plan.counts(epoch, plan.num_rows)
    return {
        name: {
            "rows": after[name] - before[name],
            "share": (after[name] - before[name]) / plan.num_rows,
            "own_epochs": after[name] / own.num_rows,
        }
        for name, own in zip(plan.names, plan.plans, strict=True)
    }
