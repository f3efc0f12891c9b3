"""`forebay clusters`: the clusters of a fleet, with their free machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.fleet.explain import FleetFile, wrapped
from forebay.cli.output import print_json, print_table

if TYPE_CHECKING:
    from forebay.fleet.federation.survey import ClusterRow

COLUMNS = ("cluster", "sku", "market", "nodes", "free", "total", "age", "price/h", "jobs")


def clusters(fleet: FleetFile = Path("fleet.toml"), as_json: AsJson = False) -> None:
    """List the clusters of a fleet: nodes, free and all GPUs (or CPUs), age of the figures, price and jobs.

    Jobs are those that run + those that start. A cluster without an answer is listed with the reason.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.clusters.fleet import load_fleet  # noqa: PLC0415
    from forebay.fleet.federation.survey import rows, survey  # noqa: PLC0415

    known = load_fleet(fleet)
    found = list(rows(known, survey(known)))
    if as_json:
        print_json({"clusters": [asdict(each) for each in found]})
        return
    lines = [line for each in found for line in _lines(each)]
    if lines:
        print_table(COLUMNS, lines)
    for each in found:
        if each.fault is not None:
            for line in wrapped(f"{each.cluster}: {each.fault}", 0):
                typer.echo(line)


def _lines(row: ClusterRow) -> Iterator[tuple[object, ...]]:
    for number, pool in enumerate(row.pools):
        price = "-" if pool.price_per_hour is None else f"{pool.price_per_hour:.2f}"
        jobs = f"{row.running}+{row.starting}" if number == 0 else ""
        name = row.cluster if number == 0 else ""
        age = "" if number else "-" if row.age_s is None else f"{row.age_s:.0f} s"
        yield name, pool.sku, pool.market, pool.nodes, pool.free, pool.total, age, price, jobs
