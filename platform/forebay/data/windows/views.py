"""Arrays of a window: history, horizon, and known columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forebay.data.transform.block import ArraySchema
from forebay.data.transform.features.columns import column_names
from forebay.data.transform.features.numeric import check_dtype
from forebay.errors import InvalidOption, whole_number

Fill = Literal["forward", "both"]
_FILLS: dict[str | None, int] = {None: 0, "forward": 1, "both": 2}


@dataclass(frozen=True, slots=True)
class History:
    """Columns that a model looks back on.

    They become array `past` [rows, steps, columns] of `dtype`. Raises `InvalidOption` for no column, a repeated one, or
    no steps.
    """

    columns: Sequence[str]
    steps: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("History", self.columns))
        object.__setattr__(self, "steps", whole_number("History(steps)", self.steps, least=1))
        object.__setattr__(self, "dtype", check_dtype("History", self.dtype))


@dataclass(frozen=True, slots=True)
class Horizon:
    """Columns to predict.

    They become array `future` [rows, steps, columns] of `dtype`.

    Attributes:
        columns: Targets.
        steps: Number of steps ahead, or the look-aheads themselves: `steps=(1, 5, 20)` gives three steps.
        gap: Steps between the past and look-ahead 1.
        known: Columns whose future is known, such as the hour: array `known` [rows, steps, columns].
        dtype: Dtype of the arrays.

    Raises `InvalidOption` for no column, a repeated one, or steps that do not ascend.
    """

    columns: Sequence[str]
    steps: int | Sequence[int]
    gap: int = 0
    known: Sequence[str] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", column_names("Horizon", self.columns))
        object.__setattr__(self, "known", column_names("Horizon(known)", self.known) if self.known else ())
        object.__setattr__(self, "dtype", check_dtype("Horizon", self.dtype))
        if not self.ahead:
            raise InvalidOption(
                f"Horizon(steps={self.steps!r}) has no look-ahead. Give their number or look-aheads such as (1, 5), or "
                "leave out future=."
            )

    @property
    def ahead(self) -> tuple[int, ...]:
        """Look-aheads, from 1."""
        if isinstance(self.steps, Sequence):
            return tuple(whole_number("Horizon(steps)", step, least=1) for step in self.steps)
        return tuple(range(1, whole_number("Horizon(steps)", self.steps, least=1) + 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """One array of a batch of windows.

    Some steps of each window, and some columns of the steps' array of `dtype`.

    Attributes:
        name: Name of the array.
        dtype: Dtype of the array, which names the array of steps.
        columns: Numbers of the columns in that array.
        width: Number of columns of that array.
        steps: Steps relative to the start of the window, ascending.
        scaling: Shift, factor, scaled value of an empty start, kind of fill, and what the shift lost as float32, of
            each column, float32 [5, columns]. None copies the bits.
        with_rests: Whether values are scaled from what they were before they were rounded.
    """

    name: str
    dtype: str
    columns: tuple[int, ...]
    width: int
    steps: tuple[int, ...]
    scaling: NDArray[np.float32] | None = None
    with_rests: bool = False

    @property
    def copies_rows(self) -> bool:
        """Whether all columns are copied in order."""
        return self.columns == tuple(range(self.width))

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of consecutive steps.

        Each is the number of the first step, the step itself and the count.
        """
        for _, group in groupby(enumerate(self.steps), key=lambda pair: pair[1] - pair[0]):
            numbers = list(group)
            yield numbers[0][0], numbers[0][1], len(numbers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowViews:
    """All arrays of a batch of windows.

    Attributes:
        views: Arrays of steps.
        static: Names of the static arrays of a block.
        past: Steps of the past, if windows may be padded: then `past_lengths` int32 [rows] counts the real ones.
        observed: Whether each float32 array has a mask of the values that were not filled: `<name>_observed`.
        statistics: Statistics that the scaling was made of, with their id, as a checkpoint keeps them. Empty without a
            scale and a fill.
    """

    views: tuple[View, ...]
    static: tuple[str, ...] = ()
    past: int | None = None
    observed: bool = False
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def array_schema(self) -> ArraySchema:
        """(name, dtype, trailing shape) of each non-static array."""
        arrays: list[tuple[str, str, tuple[int, ...]]] = []
        for view in self.views:
            shape = len(view.steps), len(view.columns)
            arrays.append((view.name, view.dtype, shape))
            if self.observed and view.scaling is not None:
                arrays.append((f"{view.name}_observed", "bool", shape))
        return (*arrays, *([] if self.past is None else [("past_lengths", "int32", ())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FillOptions:
    """Fill of missing values within a window.

    Attributes:
        fill: "forward" takes the last value before, and without one the mean of the training part. "both" takes the
            next value of the past before the mean. None keeps NaN.
        observed: Add masks of the values that were not filled.

    Raises `InvalidOption` for another fill, with the reason.
    """

    fill: Fill | None = "forward"
    observed: bool = False

    def __post_init__(self) -> None:
        if self.fill not in _FILLS:
            raise InvalidOption(
                f'fill={self.fill!r}: choose "forward", "both" or None. A fill over a whole series, or backward from '
                'the future, shows the model what it is to predict; "both" stays within the past of each window.',
                fill=self.fill,
            )

    def kind(self, view: str) -> int:
        """Kernel code of a view's fill.

        Only the past looks at its later steps.
        """
        kind = _FILLS[self.fill]
        return kind if view == "past" else min(kind, 1)
