"""Rows that `forebay peek` shows: the first ones of a dataset, of a job's data, or of a step of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyarrow.fs import FileType

from forebay.cli.output import only_the_document, progress_bar
from forebay.data.manifest.saved import load_manifest
from forebay.data.plan.order import Order
from forebay.data.plan.plan import build_plan
from forebay.data.provenance.order_rows import OrderRows, step_keys
from forebay.data.sources.scan import scan
from forebay.data.windows.step_columns import StepColumns
from forebay.storage.filesystem import below, resolve

_ORDER_RECORD = "order.json"
"""File that each run's folder has, and no dataset. The module that writes it imports torch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedRows:
    """Rows of an order, or windows.

    Attributes:
        whose: What they are the first ones of, in words.
        total: Number of rows of that.
        located: The rows.
        rank: Rank that each row was trained on, int64 [n]. None where a single worker trained it, or none yet.
    """

    whose: str
    total: int
    located: OrderRows
    rank: NDArray[np.int64] | None = None


def is_run(path: str) -> bool:
    """Whether `path` is the folder of a run."""
    place = resolve(below(path, _ORDER_RECORD))
    try:
        return bool(place.fs.get_file_info(place.path).type == FileType.File)
    except OSError:
        # A store may refuse to look beside the one object that it lets us read. The scan reports any other error.
        return False


def rows_of_data(source: str, seed: int, most: int, *, quiet: bool) -> SelectedRows:
    """First rows of epoch 0 of a dataset, or of a saved manifest (`.json`). `quiet` shows no progress."""
    if source.endswith(".json"):
        manifest = load_manifest(source)
    else:
        with progress_bar(hidden=quiet) as bar:
            task = bar.add_task("reading footers", total=None)
            manifest = scan(source, progress=lambda done, total: bar.update(task, completed=done, total=total))
    return _first_rows(build_plan(manifest, seed=seed), (), f"epoch 0 with seed {seed}", most)


def rows_of_job(path: str, words: Sequence[str], most: int, *, quiet: bool) -> SelectedRows:
    """First rows of epoch 0 of a job. `quiet` keeps its output from standard output. Raises as `job_of`."""
    # Imported here, as in `rows_of_run`, because torch takes seconds to import and a dataset does not need it.
    from forebay.cli.job_file import job_of  # noqa: PLC0415

    with only_the_document(quiet):
        data = job_of(path, words).data
    return _first_rows(data.plan, step_keys(data.datasets), "epoch 0 of the job", most)


def rows_of_run(path: str, step: int, rank: int | None, most: int, *, is_skipped: bool) -> SelectedRows:
    """First rows of a step of the run in the folder `path`. Raises as `rows_of_step`."""
    from forebay.training.runs.rows.step_rows import rows_of_step  # noqa: PLC0415

    found = rows_of_step(path, step, is_skipped=is_skipped)
    found = found if rank is None else found.of_rank(rank)
    whose = f"step {step} ({found.positions})" + ("" if rank is None else f" on rank {rank}")
    return SelectedRows(
        whose=whose,
        total=len(found.located),
        located=found.located.take(slice(most)),
        rank=found.rank[:most] if found.trained.world_size > 1 and rank is None else None,
    )


def _first_rows(order: Order, keys: Sequence[StepColumns], whose: str, most: int) -> SelectedRows:
    located = OrderRows.at(order, keys, [(0, 0, min(most, order.num_rows))], range(order.lanes))
    return SelectedRows(whose=whose, total=order.num_rows, located=located)
