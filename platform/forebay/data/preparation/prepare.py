"""`prepare`: a dataset from tables, without Ray."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.data.manifest.prepared import Prepared
from forebay.data.preparation.external_sort import sorted_tables
from forebay.data.preparation.fits import Fit
from forebay.data.preparation.parts import ROW_GROUPS_PER_FILE, agreeing, cut, write_part
from forebay.data.preparation.request import PreparationRequest, plan_request, preparation_options
from forebay.data.preparation.sealing import Production, prepare_once
from forebay.data.preparation.spans.prepare_spans import in_processes, prepare_spans
from forebay.data.preparation.spans.source import SpanSource
from forebay.errors import InvalidOption
from forebay.storage.filesystem import resolve

ROW_GROUP_ROWS = 65_536
Tables = Callable[..., Iterable[pa.Table]]


def prepare(  # noqa: PLR0913 - public options, all keyword-only
    function: Tables | SpanSource,
    /,
    *,
    into: str,
    key: str | Sequence[str] = (),
    row_group_rows: int | None = None,
    fit: Fit | Sequence[Fit] = (),
    fit_on: Any = None,
    inputs: Sequence[str] | None = None,
    version: str | None = None,
    processes: int | None = None,
    **arguments: Any,
) -> Prepared:
    """Prepare a dataset from pyarrow tables, once.

    A second call with the same function, arguments and inputs reads one small file. The rows are written as Parquet in
    row groups of exactly `row_group_rows` rows, however the tables were cut. Memory is bounded: with `key`, rows are
    sorted in runs of 64 MiB on the local disk.

    Args:
        function: Returns or yields tables, all of one schema. Called with `arguments`, and only if needed. Or a source
            that is cut into spans, such as `forebay.llm.TokenSource`: its spans are prepared in parallel, and those
            that are finished stay after a kill.
        into: Folder or URI. The dataset gets a folder of its own in it, named after the function and the fingerprint.
        key: Columns that order the rows, ascending. Rows of equal key keep their order. Without it, rows stay in the
            order of the tables.
        row_group_rows: Rows per row group. Default: 65,536, or the choice of a source of spans.
        fit: `fb.Vocabulary`, `fb.preparation.Moments` and `fb.preparation.Quantiles` to fit on the rows.
        fit_on: A pyarrow expression. Only rows for which it is true are fitted on.
        inputs: Files, folders and patterns that the function reads. Their versions are part of the fingerprint. May be
            left out if an argument is a `Manifest` or a `Prepared`.
        version: Stands for what the fingerprint cannot see of the function. Raise it whenever the result changes.
        processes: Processes that prepare the spans of a source. Default: one per core.
        arguments: Arguments of the function: plain data, paths, manifests.

    Raises:
        InvalidOption: An argument cannot be compared between runs, or no input is named.
        Unfingerprintable: The function's source does not show all it uses, and it has no `version`.
        MixedSchemas: The tables differ in their columns.
        WriteFailed: Storage refused a file.
    """
    default = function.row_group_rows if isinstance(function, SpanSource) else ROW_GROUP_ROWS
    rows = default if row_group_rows is None else row_group_rows
    options = preparation_options(
        into=into, key=key, row_group_rows=rows, fit=fit, fit_on=fit_on, inputs=inputs, version=version
    )
    if isinstance(function, SpanSource):
        if arguments:
            raise InvalidOption(f"{next(iter(arguments))}= is not an option of a source. Give it to the source itself.")
        return prepare_spans(function, options, in_processes(processes))
    request = plan_request(function, arguments, options)
    return prepare_once(request, lambda folder, production: _write(request, folder, production))


def _write(request: PreparationRequest, folder: str, production: Production) -> None:
    options = request.options
    with _scratch(folder) as scratch:
        tables = function_tables(request)
        if options.key:
            tables = sorted_tables(tables, options.key, scratch)
        row_groups = cut(tables, options.row_group_rows)
        for number in itertools.count():
            groups = list(itertools.islice(row_groups, ROW_GROUPS_PER_FILE))
            if not groups:
                return
            file, fields = write_part(folder, number, groups)
            production.add(file, fields, options.fits.part(groups))


@contextmanager
def _scratch(folder: str) -> Iterator[Path]:
    """Local folder for sorted runs.

    It is in the dataset's own folder if that is local: the next preparation then removes the runs of a killed process.
    """
    location = resolve(folder)
    with tempfile.TemporaryDirectory(prefix="_sort-", dir=location.path if location.is_local else None) as path:
        yield Path(path)


def function_tables(request: PreparationRequest) -> Iterator[pa.Table]:
    """Yield the function's tables, checked.

    They have rows, and all have one schema. The first one shows whether its columns can be fitted. Raises
    `InvalidOption` for other items, `MixedSchemas`, and as `Fits.check_schema`.
    """
    tables = agreeing(_given(request))
    first = next(tables, None)
    if first is not None:
        request.options.fits.check_schema(first.schema)
        yield first
        yield from tables


def _given(request: PreparationRequest) -> Iterable[pa.Table]:
    found = request.function(**request.arguments)
    is_one = isinstance(found, pa.Table | pa.RecordBatch) or not isinstance(found, Iterable)
    for number, table in enumerate([found] if is_one else found):
        if isinstance(table, pa.RecordBatch):
            yield pa.Table.from_batches([table])
        elif isinstance(table, pa.Table):
            yield table
        else:
            raise InvalidOption(
                f"{request.origin.name} gave {type(table).__name__} as item {number}. Let it yield pyarrow tables: "
                "pa.table(...), or pa.Table.from_pandas(frame, preserve_index=False)."
            )
