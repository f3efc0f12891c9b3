"""`from_ray_data`: a dataset from a Ray Data pipeline.

Rows never pass through the driver. Ray's blocks are cut elsewhere in every run, and its own files have random names
(Ray 2.60). So the pipeline is sorted by the key, and tasks write files cut by global row number: only the rows decide
the files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray import cloudpickle
from ray.data import DataContext, Dataset
from ray.data.block import BlockAccessor
from ray.exceptions import RayTaskError

from forebay.data.manifest.manifest import Field
from forebay.data.manifest.prepared import Prepared, PreparedFile
from forebay.data.preparation.fits import Fit, FitPart, Fits
from forebay.data.preparation.parts import ROW_GROUPS_PER_FILE, cut, plain_table, write_part
from forebay.data.preparation.preprocessors import preprocessor_facts
from forebay.data.preparation.progress import tell
from forebay.data.preparation.request import PreparationRequest, plan_request, preparation_options
from forebay.data.preparation.sealing import Production, prepare_once
from forebay.errors import ForebayError, InvalidOption, MixedSchemas
from forebay.ray_cluster.private_names import RAY_DATA, check_ray
from forebay.ray_cluster.session import ray_session, session_text
from forebay.runtime.pickling import own_code_by_value
from forebay.storage.credentials import Access

_MOST_IN_FLIGHT = 32
"""Write tasks that are submitted and not done. More would only keep more blocks in the object store."""

log = logging.getLogger(__name__)

Pipeline = Callable[..., Any]


def from_ray_data(  # noqa: PLR0913 - public options, all keyword-only
    function: Pipeline | Dataset,
    /,
    *,
    into: str,
    key: str | Sequence[str] = (),
    row_group_rows: int = 65_536,
    fit: Fit | Sequence[Fit] = (),
    fit_on: Any = None,
    inputs: Sequence[str] | None = None,
    version: str | None = None,
    **arguments: Any,
) -> Prepared:
    """Prepare a dataset with Ray Data, once.

    A second call with the same function, arguments and inputs reads one small file. Uses the Ray of this process, the
    cluster at `RAY_ADDRESS`, or a Ray that it starts on this machine and ends.

    Args:
        function: Returns a `ray.data.Dataset`, or a pair of it and a dictionary of fitted preprocessors, which are
            saved with the dataset. Called with `arguments`. A `Dataset` itself needs a `version`.
        into: Folder or URI, which every node can write. The dataset gets a folder of its own in it.
        key: Columns that together tell rows apart, by which they are sorted. Without it, files are in order of arrival:
            a second preparation gives another dataset, and cursors of the first do not fit it.
        row_group_rows: Rows per row group.
        fit: `fb.Vocabulary`, `fb.preparation.Moments` and `fb.preparation.Quantiles` to fit on the rows.
        fit_on: A pyarrow expression. Only rows for which it is true are fitted on.
        inputs: Files, folders and patterns that the function reads. Their versions are part of the fingerprint. May be
            left out if an argument is a `Manifest` or a `Prepared`. Ray 2.60 does not know the files of a pipeline
            before it runs: `Dataset.input_files()` is empty after `read_parquet`.
        version: Stands for what the fingerprint cannot see of the function. Raise it whenever the result changes.
        arguments: Arguments of the function: plain data, paths, manifests.

    Raises as `fb.prepare`, and the function's own errors as Ray raises them.
    """
    check_ray(RAY_DATA)
    options = preparation_options(
        into=into, key=key, row_group_rows=row_group_rows, fit=fit, fit_on=fit_on, inputs=inputs, version=version
    )
    if isinstance(function, Dataset):
        if version is None:
            raise InvalidOption(
                "A Dataset has no source that could be compared between runs. Give a function that returns it, or "
                'version="1".'
            )
        function = _returning(function)
    request = plan_request(function, arguments, options)
    return prepare_once(request, lambda folder, production: _produce(request, folder, production))


def _returning(dataset: Dataset) -> Pipeline:
    def given_dataset() -> Dataset:
        return dataset

    return given_dataset


def _build(function: Pipeline, arguments: Mapping[str, Any]) -> tuple[Dataset, Mapping[str, object]]:
    made = function(**arguments)
    dataset, preprocessors = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    if not isinstance(dataset, Dataset):
        raise InvalidOption(
            f"the function returned a {type(dataset).__name__}, not a ray.data.Dataset. Return the dataset, or the "
            "dataset and a dictionary of preprocessors."
        )
    return dataset, preprocessors


@contextmanager
def _ray_data() -> Iterator[None]:
    """Start Ray, and keep rows in pipeline order.

    The user's own modules are sent by value.
    """
    tell(f"{session_text()} ...")
    with ray_session(os.cpu_count() or 1), own_code_by_value(cloudpickle):
        context = DataContext.get_current()
        ray_log = logging.getLogger("ray.data")
        before = context.execution_options.preserve_order, context.enable_progress_bars, ray_log.level
        context.execution_options.preserve_order, context.enable_progress_bars = True, False
        # Ray Data prints its plans at level INFO. The preparation has its own progress.
        ray_log.setLevel(logging.WARNING)
        try:
            yield
        finally:
            context.execution_options.preserve_order, context.enable_progress_bars = before[:2]
            ray_log.setLevel(before[2])


def _produce(request: PreparationRequest, folder: str, production: Production) -> None:
    options = request.options
    if not options.key:
        log.warning(
            "%s has no key: its rows stay in order of arrival. If it is prepared again, that is another dataset, and "
            "runs cannot resume on it. Give key=, columns that tell rows apart.",
            request.origin.name,
        )
    with _ray_data():
        dataset, preprocessors = _build(request.function, request.arguments)
        production.preprocessors.update(
            {name: preprocessor_facts(name, fitted) for name, fitted in preprocessors.items()}
        )
        if options.key:
            dataset = dataset.sort(list(options.key))
        spec = _PartSpec(
            folder=folder,
            row_group_rows=options.row_group_rows,
            key=options.key,
            fits=options.fits,
            access=Access([folder]),
        )
        rows_per_file = options.row_group_rows * ROW_GROUPS_PER_FILE
        written = _WrittenParts(production, request.origin.name)
        for done in _write_all(_slices(dataset, rows_per_file), spec):
            written.add(done)
        written.warn_of_ties()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Rows `start` to `stop` of a block of `rows` rows."""

    ref: Any
    start: int
    stop: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartSpec:
    """Facts that every write task needs.

    `schema` is the schema of the first file, to which the others are cast.
    """

    folder: str
    row_group_rows: int
    key: tuple[str, ...]
    fits: Fits
    access: Access
    schema: pa.Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenPart:
    """Result of a write task.

    `ties` counts rows whose key equals the row before, within the file.
    """

    number: int
    file: PreparedFile
    fields: tuple[Field, ...]
    fitted: FitPart
    schema: pa.Schema
    ties: int
    first_key: tuple[Any, ...]
    last_key: tuple[Any, ...]


@dataclass(slots=True)
class _WrittenParts:
    """Collects parts, and counts rows of equal key."""

    production: Production
    name: str
    ties: int = 0
    keys: dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=dict)

    def add(self, done: _WrittenPart) -> None:
        self.production.add(done.file, done.fields, done.fitted)
        self.ties += done.ties
        self.keys[done.number] = done.first_key, done.last_key

    def warn_of_ties(self) -> None:
        pairs = ((self.keys[number - 1][1], self.keys[number][0]) for number in range(1, len(self.keys)))
        ties = self.ties + sum(bool(last) and last == first for last, first in pairs)
        if ties:
            log.warning(
                "%s: %d rows have the key of the row before them. Their order may differ if the data is prepared "
                "again. Add a column to key= that tells them apart.",
                self.name,
                ties,
            )


def _slices(dataset: Dataset, rows_per_file: int) -> Iterator[list[_Slice]]:
    """Yield the slices of blocks that form each file.

    They come in order, as references without rows.
    """
    waiting: list[_Slice] = []
    num_waiting = 0
    for bundle in dataset.iter_internal_ref_bundles():
        for entry, part in zip(bundle.blocks, bundle.slices, strict=True):
            rows = entry.metadata.num_rows
            start, stop = (0, rows) if part is None else (part.start_offset, part.end_offset)
            while num_waiting + stop - start >= rows_per_file:
                end = start + rows_per_file - num_waiting
                yield [*waiting, _Slice(ref=entry.ref, start=start, stop=end, rows=rows)]
                waiting, num_waiting, start = [], 0, end
            if start < stop:
                waiting.append(_Slice(ref=entry.ref, start=start, stop=stop, rows=rows))
                num_waiting += stop - start
    if waiting:
        yield waiting


def _write_all(files: Iterator[list[_Slice]], spec: _PartSpec) -> Iterator[_WrittenPart]:
    """Write each file in a Ray task.

    The first file decides the schema, so the others wait for it.
    """
    submit = ray.remote(_write).options(num_cpus=1, max_retries=3)
    waiting: list[Any] = []
    for number, slices in enumerate(files):
        facts = [replace(each, ref=None) for each in slices]
        waiting.append(submit.remote(number, spec, facts, *(each.ref for each in slices)))
        if number == 0:
            first = _result(waiting.pop())
            spec = replace(spec, schema=first.schema)
            yield first
        while len(waiting) >= _MOST_IN_FLIGHT:
            (ready, *_), waiting = ray.wait(waiting, num_returns=1)
            yield _result(ready)
    while waiting:
        (ready, *_), waiting = ray.wait(waiting, num_returns=1)
        yield _result(ready)


def _result(ref: Any) -> _WrittenPart:
    try:
        found: _WrittenPart = ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, ForebayError):
            raise error.cause from None
        raise
    return found


def _write(number: int, spec: _PartSpec, slices: Sequence[_Slice], *blocks: Any) -> _WrittenPart:
    """Write file `number`, in a Ray task.

    After its worker died it runs again, and writes the same file.
    """
    tables = []
    for part, block in zip(slices, blocks, strict=True):
        table = BlockAccessor.for_block(block).to_arrow()
        # A lost block that Ray made again may be another one, if the pipeline's order is not fixed.
        if table.num_rows != part.rows:
            raise InvalidOption(
                f"A block of {part.rows} rows was lost, and Ray made it again with {table.num_rows} rows: the pipeline "
                "gives other rows each time. Let it depend on its inputs only, and prepare again."
            )
        tables.append(plain_table(table.slice(part.start, part.stop - part.start)))
    whole = pa.concat_tables(_of_one_schema(number, tables, spec.schema))
    if spec.schema is None:
        spec.fits.check_schema(whole.schema)
    row_groups = list(cut([whole], spec.row_group_rows))
    file, fields = write_part(spec.folder, number, row_groups)
    keys = whole.select(list(spec.key))
    return _WrittenPart(
        number=number,
        file=file,
        fields=fields,
        fitted=spec.fits.part(row_groups),
        schema=whole.schema,
        ties=_ties(keys),
        first_key=tuple(keys.slice(0, 1).to_pylist()[0].values()) if spec.key else (),
        last_key=tuple(keys.slice(whole.num_rows - 1).to_pylist()[0].values()) if spec.key else (),
    )


def _of_one_schema(number: int, tables: Sequence[pa.Table], schema: pa.Schema | None) -> list[pa.Table]:
    try:
        schema = schema or pa.unify_schemas([table.schema for table in tables], promote_options="permissive")
        for table in tables:
            if other := sorted(set(schema.names).symmetric_difference(table.schema.names)):
                raise pa.ArrowInvalid(f"column {other[0]!r} is in some blocks only")
        return [table.select(schema.names).cast(schema) for table in tables]
    except (pa.ArrowException, KeyError) as error:
        raise MixedSchemas(
            f"the blocks of file {number} do not have the columns of the first file ({error}). Cast the columns in the "
            "pipeline, such as with map_batches, to one schema."
        ) from error


def _ties(keys: pa.Table) -> int:
    """Number of rows that equal the row before.

    Nulls are equal to nulls.
    """
    if not keys.num_columns or keys.num_rows < 2:
        return 0
    is_tie = None
    for column in keys.columns:
        before, after = column.slice(0, keys.num_rows - 1), column.slice(1)
        equal = pc.or_(pc.fill_null(pc.equal(before, after), False), pc.and_(before.is_null(), after.is_null()))
        is_tie = equal if is_tie is None else pc.and_(is_tie, equal)
    return int(pc.sum(is_tie).as_py() or 0)
