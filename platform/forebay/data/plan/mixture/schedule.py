"""Stages of weights, and row counts per dataset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from forebay.data.plan.mixture.shares import ShareTree, integer_weights
from forebay.errors import InvalidOption, whole_number

Weights: TypeAlias = Mapping[str, float]
StagedWeights: TypeAlias = Sequence[tuple[int, Weights]]
"""(first row, weights from it on), in ascending order from row 0. Rows count over all epochs of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStage:
    """Stage of a mixture from row `start` on.

    `tree` divides its rows. `before` holds the rows of each dataset in earlier stages.
    """

    start: int
    before: tuple[int, ...]
    tree: ShareTree


class Schedule:
    """Row counts per dataset over all stages.

    Args:
        sizes: Number of rows of each dataset.
        stages: First row of each stage, and its integer weights by index of the dataset.
    """

    def __init__(self, sizes: Sequence[int], stages: Sequence[tuple[int, Mapping[int, int]]]) -> None:
        self.sizes = tuple(sizes)
        self.stages: list[WeightStage] = []
        for start, weights in stages:
            self.add_stage(start, weights)

    def add_stage(self, start: int, weights: Mapping[int, int]) -> None:
        """Use other weights from row `start` on."""
        before = self.counts(start) if self.stages else (0,) * len(self.sizes)
        self.stages.append(WeightStage(start=start, before=before, tree=ShareTree(weights)))

    def counts(self, rows: int) -> tuple[int, ...]:
        """Rows of each dataset among the first `rows`."""
        stage = self.stages[bisect_right(self.stages, rows, key=lambda stage: stage.start) - 1]
        own = stage.tree.counts(rows - stage.start)
        return tuple(count + own.get(index, 0) for index, count in enumerate(stage.before))

    def row_number(self, index: int, own: int) -> int | None:
        """Number of dataset `index`'s row `own` in the mixture.

        Counted over all epochs of the dataset. None if it never comes.
        """
        stage = self.stages[self._stage_of(index, own)]
        if index not in stage.tree.members:
            return None
        return stage.start + stage.tree.row_number(index, own - stage.before[index])

    def stages_between(self, start: int, stop: int) -> Iterator[tuple[WeightStage, int, int]]:
        """Yield each stage of rows `start` to `stop`.

        Each comes with its first row and the end of its rows.
        """
        ends = [stage.start for stage in self.stages[1:]] + [stop]
        for stage, end in zip(self.stages, ends, strict=True):
            low, high = max(stage.start, start), min(end, stop)
            if low < high:
                yield stage, low, high

    def _stage_of(self, index: int, own: int) -> int:
        """Index of the stage with row `own` of a dataset.

        The last stage that starts with at most `own` rows of it.
        """
        return bisect_right(self.stages, own, key=lambda stage: stage.before[index]) - 1


def drop_exhausted(sizes: Sequence[int], weights: Mapping[int, float]) -> Schedule:
    """Schedule each row once.

    A dataset drops out after its last row, and the others keep their proportions.
    """
    left = dict(weights)
    schedule = Schedule(sizes, [(0, _indexed(left))])
    while True:
        ends = [schedule.row_number(index, sizes[index] - 1) for index in left]
        at = 1 + min(end for end in ends if end is not None)
        counts = schedule.counts(at)
        left = {index: weight for index, weight in left.items() if counts[index] < sizes[index]}
        if not left:
            return schedule
        schedule.add_stage(at, _indexed(left))


def staged(names: Sequence[str], weights: Weights | StagedWeights) -> list[tuple[int, dict[int, int]]]:
    """Check weights, and return their stages.

    Each stage is its first row, and its integer weights by index of the name. Raises `InvalidOption` for weights that
    cannot be a mixture of all the datasets of `names`.
    """
    given: Sequence[Any] = [(0, weights)] if isinstance(weights, Mapping) else weights
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InvalidOption(
            f"weights={weights!r:.200}: give {{name: weight}}, or stages [(first row, {{name: weight}}), ...]."
        )
    stages = [_stage(names, stage) for stage in given]
    starts = [start for start, _ in stages]
    if starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        raise InvalidOption(
            f"the stages of weights= start at rows {starts}. Give ascending rows, the first of them 0.", starts=starts
        )
    missing = [name for index, name in enumerate(names) if not any(index in whole for _, whole in stages)]
    if missing:
        raise InvalidOption(
            f"weights= leaves out {missing} of the datasets {list(names)}. Give each a weight in some stage, or leave "
            "it out of the mixture.",
            missing=missing,
        )
    return stages


def _stage(names: Sequence[str], stage: object) -> tuple[int, dict[int, int]]:
    match stage:
        case (start, Mapping() as weights) if weights:
            unknown = sorted(set(weights) - set(names), key=str)
            if unknown:
                raise InvalidOption(f"weights= names {unknown}, and the datasets are {list(names)}.", unknown=unknown)
            whole = integer_weights({name: weights[name] for name in names if name in weights})
            return whole_number("start of a stage", start), {names.index(name): each for name, each in whole.items()}
    raise InvalidOption(
        f"weights= has the stage {stage!r:.200}. Give each stage as (first row, {{name: weight, ...}})."
    )


def _indexed(weights: Mapping[int, float]) -> dict[int, int]:
    whole = integer_weights({str(index): weight for index, weight in weights.items()})
    return {int(name): each for name, each in whole.items()}


def ramp(
    first: Weights, last: Weights, start: int, stop: int, *, steps: int = 50
) -> list[tuple[int, dict[str, float]]]:
    """Return stages that go from weights `first` to `last`.

    The steps between rows `start` and `stop` are equal. A dataset that one of the two leaves out has weight 0 there.
    Rows count over all epochs of the run.

    Raises `InvalidOption` for an impossible weight, or more steps than rows.

    >>> ramp({"a": 1.0}, {"b": 1.0}, 100, 300, steps=2)
    [(0, {'a': 1.0}), (100, {'a': 0.75, 'b': 0.25}), (200, {'a': 0.25, 'b': 0.75}), (300, {'b': 1.0})]
    """
    shares = [{name: each / (1 << 20) for name, each in integer_weights(weights).items()} for weights in (first, last)]
    whole_number("start", start)
    if stop <= start:
        raise InvalidOption(f"ramp(start={start}, stop={stop}) has no rows. Give a stop after the start.", stop=stop)
    whole_number("steps", steps, least=1, most=stop - start)
    names = tuple(dict.fromkeys((*first, *last)))
    stages: list[tuple[int, dict[str, float]]] = [(0, dict(first))] if start else []
    for step in range(steps):
        done = (step + 0.5) / steps
        mixed = {name: (1 - done) * shares[0].get(name, 0.0) + done * shares[1].get(name, 0.0) for name in names}
        stages.append((start + step * (stop - start) // steps, mixed))
    return [*stages, (stop, dict(last))]
