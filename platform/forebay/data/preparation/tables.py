"""Tables that the user's function gives, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from forebay.data.preparation.parts import agreeing
from forebay.data.preparation.request import PreparationRequest
from forebay.errors import InvalidOption

Tables = Callable[..., Iterable[pa.Table]]


def function_tables(request: PreparationRequest) -> Iterator[pa.Table]:
    """Tables with rows, all of one schema. The first one shows whether its columns can be fitted.

    Raises `InvalidOption` for other items, `MixedSchemas`, and as `Fits.check_schema`.
    """
    tables = agreeing(_given(request))
    first = next(tables, None)
    if first is not None:
        request.options.fits.check_schema(first.schema)
        yield first
        yield from tables


def _given(request: PreparationRequest) -> Iterable[pa.Table]:
    found = request.function(**request.arguments)
    for number, table in enumerate([found] if isinstance(found, pa.Table) else found):
        if isinstance(table, pa.RecordBatch):
            yield pa.Table.from_batches([table])
        elif isinstance(table, pa.Table):
            yield table
        else:
            raise InvalidOption(
                f"{request.origin.name} gave {type(table).__name__} as item {number}. Let it yield pyarrow tables: "
                "pa.table(...), or pa.Table.from_pandas(frame, preserve_index=False)."
            )
