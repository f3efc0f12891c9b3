"""Several datasets mixed by weight, as one order."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from forebay.data.kernels.calls import merge
from forebay.data.plan.cursor import Cursor
from forebay.data.plan.lanes import owned_order
from forebay.data.plan.mixture.schedule import Schedule, StagedWeights, Weights, drop_exhausted, ramp, staged
from forebay.data.plan.mixture.shares import WEIGHTS_SUM
from forebay.data.plan.order import BlockSpan, Order, PositionedRows
from forebay.data.plan.permute import Ints
from forebay.errors import CursorMismatch, InvalidOption, whole_number

MIXTURE_VERSION = 1
"""Part of the id of every mixture. Raised whenever any row would come at another position."""

Until = Literal["first", "all", "once"]


class OwnRows(NamedTuple):
    """Rows `start` to `stop` of a dataset's own epoch."""

    epoch: int
    start: int
    stop: int


class Mixture(Order):
    """Several datasets mixed by weight.

    Each dataset keeps its own order.

    ```python
    mix = fb.Mixture({"web": web_plan, "code": code_plan}, weights={"web": 0.8, "code": 0.2})
    ```

    Each dataset is an endless stream of its own epochs. The weights decide which stream gives the next row, and the
    number of rows of each stays within 2 of its exact share at every position. Epochs of the mixture continue the
    streams, so every row of a dataset comes once before any comes twice.

    Args:
        plans: Order of each dataset by its name. `names` and `Batch.source` count them in sorted order.
        weights: Weight of each name, or stages `[(first row, weights), ...]` in rows of the run (see `ramp`). A stage
            may leave out datasets. By default the number of rows, as for held-out data with `until="once"`.
        until: End of an epoch. "first": before a dataset would repeat a row. "all", the default: when each row of
            every dataset has come at least once, counted from the start of the run. "once": each row exactly once; a
            dataset drops out after its last row, and the others keep their proportions.
        rows: Number of rows of an epoch, instead of `until`.

    A mixture has as many lanes as the plan with the fewest. Its id covers the ids of the plans, the names, and the
    integer weights of all stages.

    Raises:
        InvalidOption: Weights that are not finite numbers above 0, datasets without weight, or a mixture in a mixture.
    """

    ramp = staticmethod(ramp)

    def __init__(
        self,
        plans: Mapping[str, Order],
        weights: Weights | StagedWeights | None = None,
        *,
        until: Until | None = None,
        rows: int | None = None,
    ) -> None:
        rows = _validate(plans, until, rows)
        weights = _weights_of_sizes(plans) if weights is None else weights
        self.names = tuple(sorted(plans))
        self.plans = tuple(plans[name] for name in self.names)
        self.until: Until | None = until or ("all" if rows is None else None)
        self.repeats_rows = self.until != "once"
        self.manifests = tuple(manifest for plan in self.plans for manifest in plan.manifests)
        self.windows = tuple(index for plan in self.plans for index in plan.windows)
        self.block_rows = np.concatenate([plan.block_rows for plan in self.plans])
        self.lanes = min(plan.lanes for plan in self.plans)
        self.owned_order = owned_order(self.lanes)
        self._lane_of = [self._mixture_lanes(plan) for plan in self.plans]
        self._first_blocks = np.cumsum([0, *(len(plan.block_rows) for plan in self.plans)]).tolist()
        stages = staged(self.names, weights)
        # A copy: pickle gives other processes the same mixture, also after the caller has changed its dictionary.
        self._weights = _copied(weights)
        sizes = [plan.num_rows for plan in self.plans]
        self._schedule = _once(self.names, sizes, weights) if until == "once" else Schedule(sizes, stages)
        self.num_rows = self._epoch_rows() if rows is None else rows
        facts = [MIXTURE_VERSION, self.names, [plan.id for plan in self.plans], self._stage_facts(), self.until, rows]
        self.id = hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @classmethod
    def continue_from(
        cls, old: Mixture, cursor: Cursor, plans: Mapping[str, Order], weights: Weights | StagedWeights
    ) -> Mixture:
        """Change the weights of mixture `old` at `cursor`.

        The mixture returned equals `old` up to `cursor`, and mixes `plans` by other weights from there on. A dataset
        that keeps its name goes on after its last row, and must keep its plan. One that is left out of `plans` gives no
        more rows. Epochs keep their number of rows. A run of `old` whose newest checkpoint is at `cursor` or before it
        can continue with this mixture.

        Args:
            old: Mixture of the run so far.
            cursor: Position at which the weights change, from a checkpoint or a loader.
            plans: Order of each dataset from there on.
            weights: Weights from there on, or stages whose rows count from the start of the run.

        Raises:
            InvalidOption: `old` reads each row once per epoch, a name has another plan, or a stage starts earlier.
            CursorMismatch: The cursor belongs to another plan.
        """
        _check_change(old, cursor, plans)
        kept = dict(zip(old.names, old.plans, strict=True))
        at = cursor.epoch * old.num_rows + cursor.position
        later = [(at, weights)] if isinstance(weights, Mapping) else list(weights)
        staged(sorted(plans), [(0 if number == 0 else start, each) for number, (start, each) in enumerate(later)])
        if later[0][0] != at:
            raise InvalidOption(
                f"the first stage of weights= starts at row {later[0][0]}, and the cursor is at row {at} of the run. "
                "Give it the row of the cursor.",
                row=at,
            )
        before: StagedWeights = [(0, old._weights)] if isinstance(old._weights, Mapping) else old._weights
        stages = [*((start, each) for start, each in before if start < at), *later]
        given_rows = {name for _, each in stages for name in each}
        # A dataset that had no row yet and is left out now does not belong to the mixture.
        mixture = cls(
            {name: plan for name, plan in (kept | dict(plans)).items() if name in given_rows or name in plans},
            stages,
            rows=old.num_rows,
        )
        mixture.continues = {name: min(limit, at) for name, limit in old.continues.items()} | {old.id: at}
        return mixture

    def __reduce__(self) -> tuple[object, ...]:
        plans = dict(zip(self.names, self.plans, strict=True))
        return _rebuild, (plans, *self.options.values(), dict(self.continues))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments after the plans."""
        rows = self.num_rows if self.until is None else None
        return {"weights": self._weights, "until": self.until, "rows": rows}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {plan.num_rows}" for name, plan in zip(self.names, self.plans, strict=True))
        rule = f"until={self.until!r}" if self.until else "rows="
        stages = f", {len(self._schedule.stages)} stages" if len(self._schedule.stages) > 1 else ""
        return f"Mixture({self.id[:8]}: {self.num_rows} rows of {sizes}, {rule}, lanes={self.lanes}{stages})"

    def counts(self, epoch: int, position: int) -> dict[str, int]:
        """Rows per dataset before a position, over the whole run.

        Raises `InvalidOption` for a position that does not exist.
        """
        epoch, position = whole_number("epoch", epoch), whole_number("position", position, most=self.num_rows)
        return dict(zip(self.names, self._counts(epoch, position), strict=True))

    def positioned_rows(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> PositionedRows:
        def rows_of(index: int, own: OwnRows) -> tuple[Ints, ...]:
            rows = self.plans[index].positioned_rows(*own, self._own_lanes(index, lanes))
            return rows.position, rows.block + self._first_blocks[index], rows.row

        return PositionedRows(*self._merged(epoch, start, stop, rows_of, columns=2))

    def row_lanes(self, epoch: int, start: int, stop: int, lanes: Sequence[int]) -> Ints:
        def lanes_of(index: int, own: OwnRows) -> tuple[Ints, ...]:
            plan, arguments = self.plans[index], (*own, self._own_lanes(index, lanes))
            return plan.positioned_rows(*arguments).position, self._lane_of[index][plan.row_lanes(*arguments)]

        merged_lanes: Ints = self._merged(epoch, start, stop, lanes_of, columns=1)[1]
        return merged_lanes

    def window_shifts(self, epoch: int, positions: Ints, source: int = 0) -> Ints:
        plan, size = self.plans[source], self.plans[source].num_rows
        if not len(positions):
            return plan.window_shifts(epoch, positions)
        first, last = (self._counts(epoch, position)[source] // size for position in positions[[0, -1]].tolist())
        ends = [self._position(source, epoch, own * size) for own in range(first + 1, last + 1)]
        parts = np.split(positions, np.searchsorted(positions, ends))
        own_epochs = range(first, last + 1)
        return np.concatenate([plan.window_shifts(own, part) for own, part in zip(own_epochs, parts, strict=True)])

    def block_spans(self, epoch: int, position: int, lanes: Sequence[int]) -> Iterator[BlockSpan]:
        return heapq.merge(*(self._own_spans(index, epoch, position, lanes) for index in range(len(self.plans))))

    def _own_spans(self, index: int, epoch: int, position: int, lanes: Sequence[int]) -> Iterator[BlockSpan]:
        """Block spans of one dataset, in positions of the mixture."""
        plan, size = self.plans[index], self.plans[index].num_rows
        own_lanes = self._own_lanes(index, lanes)
        start, stop = self._counts(epoch, position)[index], self._counts(epoch, self.num_rows)[index]
        while start < stop:
            own_epoch, own_position = divmod(start, size)
            first = own_epoch * size
            for span in plan.block_spans(own_epoch, own_position, own_lanes):
                need, last = first + span.need, first + min(span.release, size) - 1
                if need >= stop:
                    return
                yield BlockSpan(
                    self._position(index, epoch, need),
                    self._position(index, epoch, min(last, stop - 1)) + 1,
                    span.block + self._first_blocks[index],
                )
            start = first + size

    def _own_rows(self, epoch: int, start: int, stop: int) -> Iterator[tuple[int, OwnRows]]:
        """Rows of each dataset among positions `start` to `stop`.

        They are cut at the ends of its own epochs.
        """
        ends = zip(self._counts(epoch, start), self._counts(epoch, stop), strict=True)
        for index, (low, high) in enumerate(ends):
            size = self.plans[index].num_rows
            cuts = [low, *range(low - low % size + size, high, size), high] if low < high else []
            for first, last in pairwise(cuts):
                own_epoch, own_start = divmod(first, size)
                yield index, OwnRows(own_epoch, own_start, own_start + last - first)

    def _counts(self, epoch: int, position: int) -> tuple[int, ...]:
        """Rows of each dataset before a position.

        Counted over all its own epochs.
        """
        counts = self._schedule.counts(self._epoch_start(epoch) + position)
        if self.until != "once":
            return counts
        return tuple(epoch * size + count for size, count in zip(self._schedule.sizes, counts, strict=True))

    def _merged(
        self, epoch: int, start: int, stop: int, rows_of: Callable[[int, OwnRows], tuple[Ints, ...]], *, columns: int
    ) -> Ints:
        """Merge the rows of all datasets, int64 [1 + columns, n].

        The rows at positions `start` to `stop`, in order: position, then the columns. `rows_of(dataset, own rows)`
        returns the own positions of the rows to merge, ascending, and their columns.
        """
        parts: list[list[tuple[Ints, ...]]] = [[] for _ in self.plans]
        state = np.zeros((3, len(self.plans)), dtype=np.int64)
        first_epoch = [0] * len(self.plans)
        for index, own in self._own_rows(epoch, start, stop):
            if not parts[index]:
                first_epoch[index], state[0, index] = own.epoch, own.start
            position, *values = rows_of(index, own)
            later = (own.epoch - first_epoch[index]) * self.plans[index].num_rows
            parts[index].append((position + later if later else position, *values))
        streams = [_joined(each) for each in parts]
        addresses = np.zeros((len(streams), 1 + columns), dtype=np.uint64)
        for index, stream in enumerate(streams):
            if stream:
                addresses[index], state[2, index] = [column.ctypes.data for column in stream], len(stream[0])
        merged = np.empty((1 + columns, int(state[2].sum())), dtype=np.int64)
        first, written = self._epoch_start(epoch), 0
        for stage, low, high in self._schedule.stages_between(first + start, first + stop):
            tree, target = stage.tree, (low - first, high - first, stage.tree.root, written)
            due = tree.due(low - stage.start)
            written = merge(tree.nodes, due, np.array(target, dtype=np.int64), addresses, state, merged)
        assert written == merged.shape[1], "each row has a position"
        return merged

    def _own_lanes(self, index: int, lanes: Sequence[int]) -> list[int]:
        """Lanes of a dataset owned by the mixture's `lanes`."""
        found: list[int] = np.flatnonzero(np.isin(self._lane_of[index], lanes)).tolist()
        return found

    def _position(self, index: int, epoch: int, own: int) -> int:
        """Position of row `own` of a dataset.

        Counted over all its own epochs.
        """
        if self.until == "once":
            own -= epoch * self.plans[index].num_rows
        number = self._schedule.row_number(index, own)
        assert number is not None, "it comes before the end of this epoch"
        return number - self._epoch_start(epoch)

    def _epoch_start(self, epoch: int) -> int:
        """First row of an epoch in the schedule.

        The schedule starts over in each epoch if each row comes once.
        """
        return 0 if self.until == "once" else epoch * self.num_rows

    def _epoch_rows(self) -> int:
        sizes = self._schedule.sizes
        if self.until == "once":
            return sum(sizes)
        if self.until == "first":
            repeats = [self._schedule.row_number(index, size) for index, size in enumerate(sizes)]
            return min(number for number in repeats if number is not None)
        ends = [self._schedule.row_number(index, size - 1) for index, size in enumerate(sizes)]
        never = [name for name, end in zip(self.names, ends, strict=True) if end is None]
        if never:
            raise InvalidOption(
                f'until="all" waits for every row of {never}, and the last stages of weights= leave these datasets '
                'out before that. Give them a weight in the last stage, or give rows= or until="first".',
                names=never,
            )
        return 1 + max(end for end in ends if end is not None)

    def _mixture_lanes(self, plan: Order) -> Ints:
        """Lane of the mixture for each lane of a plan, int64.

        Both are divided in the order in which ranks own them, so a rank owns about equal
        runs of both.
        """
        numbers = np.arange(self.lanes, dtype=np.int64)
        bounds = np.append(numbers, self.lanes) * plan.lanes // self.lanes
        lane_of = np.empty(plan.lanes, dtype=np.int64)
        lane_of[plan.owned_order] = np.repeat(self.owned_order, np.diff(bounds))
        return lane_of

    def _stage_facts(self) -> list[object]:
        names = dict(enumerate(self.names))
        return [
            [start, {names[index]: weight for index, weight in sorted(weights.items())}]
            for start, weights in staged(self.names, self._weights)
        ]

    def _lanes_reason(self) -> str:
        name = min(zip(self.plans, self.names, strict=True), key=lambda each: each[0].lanes)[1]
        return f", as many as dataset {name!r} has"


def _joined(parts: Sequence[tuple[Ints, ...]]) -> tuple[Ints, ...]:
    """Concatenate the columns of all parts, for a kernel."""
    columns = parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]
    return tuple(np.ascontiguousarray(column, dtype=np.int64) for column in columns)


def _copied(weights: Weights | StagedWeights) -> Weights | StagedWeights:
    return dict(weights) if isinstance(weights, Mapping) else [(start, dict(each)) for start, each in weights]


def _once(names: Sequence[str], sizes: Sequence[int], weights: Weights | StagedWeights) -> Schedule:
    if not isinstance(weights, Mapping):
        raise InvalidOption(
            f'until="once" and {len(weights)} stages of weights= were both given: each epoch would start the stages '
            "over. Give one weight for each dataset, or rows= or another until=."
        )
    return drop_exhausted(sizes, {index: weights[name] for index, name in enumerate(names)})


def _weights_of_sizes(plans: Mapping[str, Order]) -> Weights:
    """Number of rows of each dataset, as weights.

    A tiny dataset gets the smallest share, and not less.
    """
    least = sum(plan.num_rows for plan in plans.values()) / WEIGHTS_SUM * 2
    return {name: max(plan.num_rows, least) for name, plan in plans.items()}


def _validate(plans: object, until: object, rows: object) -> int | None:
    """Check the arguments of a mixture.

    Returns `rows` as a plain number.
    """
    if not isinstance(plans, Mapping) or not plans or not all(isinstance(name, str) for name in plans):
        raise InvalidOption(f"Mixture was given {plans!r:.200}. Give {{name: fb.build_plan(manifest), ...}}.")
    for name, plan in plans.items():
        if not isinstance(plan, Order) or plan.names:
            raise InvalidOption(
                f"dataset {name!r} of the mixture is {plan!r:.200}. Give what fb.build_plan(manifest) returns, and "
                "the datasets of another mixture one by one.",
                name=name,
            )
    windows = {name: bool(plan.windows) for name, plan in plans.items()}
    if len(set(windows.values())) > 1:
        raise InvalidOption(
            f"the mixture has windows of series ({', '.join(name for name in windows if windows[name])}) and rows "
            f"({', '.join(name for name in windows if not windows[name])}). A batch holds one kind: give all plans "
            "parts of fb.Sequences, or none.",
            names=tuple(plans),
        )
    if until is not None and until not in get_args(Until):
        raise InvalidOption(f"until={until!r} is unknown. Choose one of {', '.join(map(repr, get_args(Until)))}.")
    if rows is None:
        return None
    if until is not None:
        raise InvalidOption(f"until={until!r} and rows={rows!r} were both given. Give one of them.", rows=rows)
    return whole_number("rows", rows, least=1)


def _rebuild(
    plans: Mapping[str, Order],
    weights: Weights | StagedWeights,
    until: Until | None,
    rows: int | None,
    continues: Mapping[str, int],
) -> Mixture:
    mixture = Mixture(plans, weights, until=until, rows=rows)
    mixture.continues = continues
    return mixture


def _check_change(old: Mixture, cursor: Cursor, plans: Mapping[str, Order]) -> None:
    """Check that the weights of `old` may change at `cursor`.

    Raises as `Mixture.continue_from`.
    """
    if not old.accepts(cursor):
        raise CursorMismatch(
            f"continue_from() was given a cursor of plan {cursor.plan_id[:8]}, and {old}. Give the mixture of that "
            "cursor.",
            plan=old.id,
        )
    if old.until == "once":
        raise InvalidOption(
            'continue_from() was given a mixture with until="once", which starts over in each epoch. Use rows= or '
            "another until= for a mixture whose weights will change, or start a new run at the end of an epoch."
        )
    for name, before in zip(old.names, old.plans, strict=True):
        if name in plans and plans[name].id != before.id:
            raise InvalidOption(
                f"{name!r} has plan {plans[name].id[:8]}, and had {before.id[:8]} until now. Give the same plan, or a "
                "new name.",
                name=name,
            )
