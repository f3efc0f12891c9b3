"""Selection of the rows that `forebay rows` shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow.fs import FileType

from forebay.cli.output import only_the_document, progress_bar
from forebay.cli.settings import folder_of
from forebay.data.manifest.saved import load_manifest
from forebay.data.plan.order import Last, Order
from forebay.data.plan.plan import build_plan
from forebay.data.provenance.order_rows import OrderRows, step_keys
from forebay.data.sources.scan import scan
from forebay.data.windows.steps import StepColumns
from forebay.errors import BadUsage, InvalidOption, whole_number
from forebay.storage.filesystem import below, resolve
from forebay.world import World

_NAME = re.compile(r"[\w-]+")
"""Pattern of a run's name that is not a path, a pattern or a URI."""
_ORDER_RECORD = "order.json"
"""File that each run's folder has, and no dataset. The module that writes it imports torch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedRows:
    """Rows of an order, or windows.

    Attributes:
        whose: Name of the selection, in words.
        total: Number of rows of the epoch or step.
        located: The rows.
        rank: Rank that each row was trained on, int64 [n]. None for rows that no run has trained.
        world_size: Number of ranks that share the rows.
        facts: More facts for JSON.
    """

    whose: str
    total: int
    located: OrderRows
    rank: NDArray[np.int64] | None = None
    world_size: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)

    def first(self, most: int) -> SelectedRows:
        """Return the first `most` rows of the selection."""
        rank = None if self.rank is None else self.rank[:most]
        return replace(self, located=self.located.take(slice(most)), rank=rank)

    @property
    def shows_ranks(self) -> bool:
        """Whether the rows belong to several ranks."""
        return self.rank is not None and self.world_size > 1

    @property
    def ranks(self) -> list[int]:
        """Rank of each row.

        Empty if no run has trained them.
        """
        return [] if self.rank is None else self.rank.tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of an epoch of data, without a run.

    Without a `step`, the `first` rows of the epoch. Else the rows that a rank, or all, read at that global batch.
    """

    epoch: int
    step: int | None
    world: int
    rank: int | None
    first: int


def is_run(path: str) -> bool:
    """Whether `path` is the folder of a run."""
    record = resolve(below(path, _ORDER_RECORD))
    try:
        return bool(record.fs.get_file_info(record.path).type == FileType.File)
    except OSError:
        # A store may refuse to look beside the one object that it lets us read. The scan reports any other error.
        return False


def run_of(source: str, storage: str | None = None) -> str | None:
    """Return the folder of the run that `source` names, or None for a dataset.

    A file or folder here, or another dataset, is not looked up as a name. Raises as `folder_of` with a `storage`.
    """
    if storage is not None:
        return folder_of(source, storage)
    if is_run(source):
        return source
    if not _NAME.fullmatch(source) or Path(source).exists():
        return None
    try:
        return folder_of(source)
    except InvalidOption as error:
        raise InvalidOption(f"{source} is not a file or folder here, and {error}") from error


def rows_of_data(
    source: str,
    part: Part,
    *,
    seed: int,
    lanes: int | None,
    batch: int | None,
    allow_locations: Sequence[str],
    quiet: bool,
) -> SelectedRows:
    """Select rows of a dataset or a saved manifest (`.json`).

    `quiet` shows no progress.
    """
    if batch is not None:
        whole_number("--batch", batch, least=1)
    if part.step is not None and batch is None:
        raise BadUsage(
            f"--step {part.step}: {source} is not the folder of a run, and a dataset has no batches. Correct it, or "
            "add --batch, the rows of a global batch."
        )
    if source.endswith(".json"):
        manifest = load_manifest(source, allow_locations)
    else:
        with progress_bar(hidden=quiet) as bar:
            task = bar.add_task("reading footers", total=None)
            manifest = scan(
                source,
                allow_locations=allow_locations,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    plan = build_plan(manifest, seed=seed, lanes=lanes)
    return _rows_of_order(plan, (), part, f"epoch {part.epoch} with seed {seed}", batch or part.first, "balance")


def rows_of_job(path: str, words: Sequence[str], part: Part, *, quiet: bool) -> SelectedRows:
    """Select rows of a job's data.

    `quiet` keeps its output from standard output. Raises as `job_of`.
    """
    # Imported here, as in `rows_of_run`, because torch takes seconds to import and a dataset does not need it.
    from forebay.cli.job_file import job_of  # noqa: PLC0415

    with only_the_document(quiet):
        data = job_of(path, words).data
    keys = step_keys(data.datasets)
    return _rows_of_order(data.plan, keys, part, f"epoch {part.epoch} of the job", data.global_batch, data.last)


def rows_of_run(
    path: str, step: int, rank: int | None, *, is_skipped: bool, allow_locations: Sequence[str]
) -> SelectedRows:
    """Select the rows of a run's step.

    `path` is the run's folder. Raises as `rows_of_step`.
    """
    from forebay.training.runs.rows.step_rows import rows_of_step  # noqa: PLC0415

    found = rows_of_step(path, step, is_skipped=is_skipped, allow_locations=allow_locations)
    found = found if rank is None else found.of_rank(rank)
    size = found.trained.world_size
    workers = f"{size} worker{'s' if size > 1 else ''}" if rank is None else f"rank {rank} of {size}"
    batches = [{"epoch": epoch, "start": start, "stop": stop} for epoch, start, stop in found.trained.spans]
    return SelectedRows(
        whose=f"step {step} ({found.positions}) on {workers}",
        total=len(found.located),
        located=found.located,
        rank=found.rank,
        world_size=size if rank is None else 1,
        facts={"step": found.trained.step, "batches": batches, "world": size, "rank": rank},
    )


def _rows_of_order(
    order: Order, keys: Sequence[StepColumns], part: Part, whose: str, batch: int, last: Last
) -> SelectedRows:
    whole_number("--epoch", part.epoch)
    order.owned_lanes(World(size=part.world))
    lanes: Sequence[int] = range(order.lanes)
    facts: dict[str, Any] = {"epoch": part.epoch}
    if part.step is None:
        start, stop = 0, min(part.first, order.num_rows)
    else:
        batches = order.num_batches(batch, last=last)
        step = whole_number("--step", part.step, least=1, most=batches)
        start = order.batch_start(step - 1, batch, last=last)
        stop = start + order.batch_size(start, batch, last=last)
        whose = f"global batch {step} of {batches} of {whose}"
        facts |= {"step": step, "position": start, "size": stop - start}
    if part.rank is not None:
        rank = whole_number("--rank", part.rank, most=part.world - 1)
        lanes = order.owned_lanes(World(rank=rank, size=part.world))
        whose = f"{whose}, rank {rank} of {part.world}"
        facts |= {"world": part.world, "rank": rank}
    located = OrderRows.at(order, keys, [(part.epoch, start, stop)], lanes)
    total = order.num_rows if part.step is None else len(located)
    return SelectedRows(whose=whose, total=total, located=located, facts=facts)
