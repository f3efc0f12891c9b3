"""Definition of which columns of a dataset are the steps of its series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from forebay.data.transform.features.categories import is_text, value_type
from forebay.data.transform.features.columns import column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Feature, Ragged, Schema
from forebay.data.transform.features.numeric import check_dtype, check_numeric
from forebay.data.transform.features.ragged import is_list
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption

_CLOCKS = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepColumns:
    """Columns that a block of sequences keeps.

    Says nothing of windows, splits or scales: all trials of a sweep over these share their blocks.

    Attributes:
        entity: Column of integers or strings that names the series of a row. None: all rows are one series.
        time: Column of timestamps, dates or integers that orders the steps. None: the order of the files.
        values: Columns of the steps, by dtype of their array.
        static: Features that are constant within a series, by array name.
        is_list: Whether a row holds the steps of one series as lists, rather than one step.
    """

    entity: str | None
    time: str | None
    values: Mapping[str, tuple[str, ...]]
    static: Mapping[str, Feature] = field(default_factory=dict)
    is_list: bool = False

    def __post_init__(self) -> None:
        named = {
            check_dtype("Sequences", dtype): column_names("Sequences", names) for dtype, names in self.values.items()
        }
        if not named:
            raise InvalidOption("Sequences has no column of steps. Name at least one in fb.History.")
        object.__setattr__(self, "values", named)
        for name, feature in self.static.items():
            if isinstance(feature, Ragged) and not feature.padded:
                raise InvalidOption(
                    f"Static feature {name!r} of Sequences is Ragged(padded=False), and batches of windows hold padded "
                    "lists. Give padded=True and max_len=..."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read, each once."""
        own = [name for name in (self.entity, self.time) if name is not None]
        static = chain.from_iterable(feature.columns for feature in self.static.values())
        return tuple(dict.fromkeys([*own, *chain.from_iterable(self.values.values()), *static]))

    @property
    def has_rows_as_steps(self) -> bool:
        """Whether the steps of a block are the rows of its row group, in their order."""
        return self.entity is None and self.time is None and not self.is_list

    def keys(self) -> StepColumns:
        """Fewest of these columns whose steps have the same order, with one column of values."""
        dtype, names = next(iter(self.values.items()))
        return StepColumns(entity=self.entity, time=self.time, values={dtype: names[:1]}, is_list=self.is_list)

    def time_type(self, schema: Schema) -> pa.DataType:
        """Type of one time. Raises `MissingColumn`. Needs a time column."""
        assert self.time is not None
        return _item(column_type("Sequences(time)", self.time, schema))

    def identity(self) -> Identity:
        """Everything that the arrays depend on."""
        values: list[Identity] = [[dtype, list(names)] for dtype, names in self.values.items()]
        static: list[Identity] = [[name, feature.identity()] for name, feature in self.static.items()]
        return ["Sequences", self.entity, self.time, values, static, self.is_list]

    def check(self, schema: Schema) -> None:
        """Raise `MissingColumn` or `WrongType` for a column that cannot be used."""
        if self.entity is not None:
            found = column_type("Sequences(entity)", self.entity, schema)
            if not (is_text(value_type(found)) or pa.types.is_integer(value_type(found))):
                raise wrong_type("Sequences(entity)", self.entity, found, "An entity is an integer or a string.")
        if self.time is not None:
            self._check_time(column_type("Sequences(time)", self.time, schema))
        for dtype, names in self.values.items():
            for name in names:
                found = column_type("Sequences", name, schema)
                if is_list(found) != self.is_list:
                    raise wrong_type("Sequences", name, found, _MIXED)
                check_numeric("Sequences", name, _item(found), dtype)
        for name, feature in self.static.items():
            feature.check(name, schema)

    def _check_time(self, found: pa.DataType) -> None:
        assert self.time is not None
        if is_list(found) != self.is_list:
            raise wrong_type("Sequences(time)", self.time, found, _MIXED)
        if not any(kind(_item(found)) for kind in _CLOCKS):
            remedy = "A time is a timestamp, a date or an integer. Floats repeat and round: cast them to integers."
            raise wrong_type("Sequences(time)", self.time, found, remedy)


_MIXED = "The time and the columns of steps must all be lists (a row is a series), or none of them (a row is a step)."


def _item(found: pa.DataType) -> pa.DataType:
    return found.value_type if is_list(found) else found
