"""Petastorm's `make_batch_reader`, over a plan and a cache."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.bridges.equal_parts import has_equal_parts
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.loader.batch import Batch
from forebay.data.loader.loader import Loader
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Feature, Label
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, WrongType, validate_type, whole_number
from forebay.runtime.extras import require_package
from forebay.world import World

REFUSED: Mapping[str, str] = {
    "predicate": "Leave rows out by fb.scan(url, where=...) or manifest.keep, and read by fb.Loader.",
    "rowgroup_selector": "Leave rows out by fb.scan(url, where=...), which skips row groups by their statistics.",
    "shard_seed": "Shards are parts of every batch: seed= shuffles all of them.",
    "filters": "Leave rows out by fb.scan(url, where=...), and read by fb.Loader.",
    "storage_options": "Options of a storage are part of the URL: docs/storage.md.",
    "filesystem": "The URL names the storage: docs/storage.md.",
    "cache_extra_settings": "The cache is an fb.DiskCache, which has no such settings.",
}
"""Arguments that only None suits, with what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """Column of a batch. `shape` is the shape of one row."""

    name: str
    numpy_dtype: Any
    shape: tuple[int, ...] = ()
    codec: None = None
    nullable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSchema:
    """Columns of a reader's batches, by name and in order."""

    fields: Mapping[str, SchemaField]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnArrays:
    """Transform of plain columns, and their arrays in a batch.

    Features have names of their own, because a column may have any name.
    """

    transform: Transform
    dtypes: Mapping[str, np.dtype[Any]]

    @classmethod
    def of(cls, manifest: Manifest) -> ColumnArrays:
        """Return the transform that keeps each column of a manifest.

        Raises `WrongType` unless all are numbers or bools.
        """
        kinds = {field.name: parse_type(field.type) for field in manifest.fields}
        if others := sorted(name for name, kind in kinds.items() if not _is_number(kind)):
            raise WrongType(
                f"the columns {others} hold no numbers. Name the others in schema_fields=, or give a "
                "transform=fb.Transform(...) that makes numbers of them.",
                columns=tuple(others),
            )
        types = {name: np.dtype(kind.to_pandas_dtype()) for name, kind in kinds.items()}
        features: dict[str, Any] = {
            f"column{number}": _feature(name, dtype) for number, (name, dtype) in enumerate(types.items())
        }
        return cls(transform=Transform(**features), dtypes=types)

    def columns(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays of a batch by the names of columns."""
        return {
            name: _flat(batch[f"column{number}"], dtype) for number, (name, dtype) in enumerate(self.dtypes.items())
        }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _feature(column: str, dtype: np.dtype[Any]) -> Feature:
    if dtype.kind == "f":  # a null is NaN, as in petastorm
        return Dense([column], dtype=dtype.name, fill=float("nan"))
    return Label(column, dtype="uint8" if dtype.kind == "b" else dtype.name)


def _flat(array: Any, dtype: np.dtype[Any]) -> Any:
    return array[:, 0] if dtype.kind == "f" else array.view(np.bool_) if dtype.kind == "b" else array


class BatchReader(AbstractContextManager["BatchReader"]):
    """Reader of `num_epochs` epochs, as petastorm's `Reader`.

    Yields named tuples of NumPy arrays [rows, ...]. Its state is the loader's.

    Attributes:
        loader: The `Loader` below.
        num_epochs: Epochs until the end, or None for no end.
        last_row_consumed: Whether the end was reached. Only then `reset` is possible.
        stopped: Whether `stop` was called.
        batched_output: True.
    """

    batched_output = True

    def __init__(self, loader: Loader, num_epochs: int | None, plain: ColumnArrays | None = None) -> None:
        self.loader, self.num_epochs, self._plain = loader, num_epochs, plain
        self.last_row_consumed = self.stopped = False
        self._kind: Any = None
        self._batches: Iterator[Any] | None = None
        self._end = num_epochs

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> Any:
        if self.stopped:
            raise RuntimeError(
                "the reader was stopped (its `with` block has ended, or stop() was called), so it has no more batches. "
                "Make a new one; load_state_dict(state) continues."
            )
        batches = self._batches or _rest(self.loader, self._end)
        # An error or an interrupt ends an iterator, and the next one goes on at the cursor.
        self._batches = _rest(self.loader, self._end)
        try:
            batch = next(batches)
        except StopIteration:
            self.last_row_consumed = True
            raise
        self._batches = batches
        columns = dict(batch) if self._plain is None else self._plain.columns(batch)
        self._kind = self._kind or batch_type(list(columns))
        return self._kind(*columns.values())

    next = __next__

    def reset(self) -> None:
        """Read `num_epochs` more epochs, in their own orders.

        Without an effect before the first batch, and after `stop`. Raises `NotImplementedError` in between, before the
        end of the last epoch.
        """
        if self.stopped or (self._batches is None and not self.last_row_consumed):
            return
        if not self.last_row_consumed or self.num_epochs is None:
            raise NotImplementedError(
                "reset() was called before the last batch was read. Read to the end first, or load_state_dict(state) "
                "of the place to continue from."
            )
        self._end = self.loader.epoch + self.num_epochs
        self._batches, self.last_row_consumed = None, False

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch, for any number of shards."""
        return dict(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` to the end of its `num_epochs` epochs."""
        self.loader.load_state_dict(state)
        self._batches, self.last_row_consumed = None, False
        if self.num_epochs is not None:
            begun = self.loader.epoch + (self.loader.cursor().position > 0)
            self._end = max(-(-begun // self.num_epochs), 1) * self.num_epochs

    @property
    def schema(self) -> ReaderSchema:
        """Columns of a batch.

        Raises `InvalidOption` where a function makes them: then a batch shows them.
        """
        data = self.loader.data
        arrays = data.transform.array_schema(data.plan.manifests[0]) if isinstance(data.transform, Transform) else None
        if arrays is None:
            raise InvalidOption("schema is not known before a function has made the columns: read a batch's _fields.")
        fields = {
            name: SchemaField(name=name, numpy_dtype=np.dtype(kind).type, shape=shape) for name, kind, shape in arrays
        }
        if self._plain is not None:
            fields = {
                name: SchemaField(name=name, numpy_dtype=dtype.type, nullable=dtype.kind == "f")
                for name, dtype in self._plain.dtypes.items()
            }
        return ReaderSchema(fields=fields)

    @property
    def diagnostics(self) -> dict[str, float]:
        """Counters of the loader."""
        return self.loader.counters.as_dict()

    def stop(self) -> None:
        """End all threads. Batches stay valid."""
        self.stopped = True
        self.loader.close()

    def join(self) -> None:
        """Do nothing: `stop` has waited for all threads."""

    def __exit__(self, *_: object) -> None:
        self.stop()


# Without the reader: both would end only at a garbage collection, which may run in a thread of the loader.
def _rest(loader: Loader, end: int | None) -> Iterator[Batch]:
    """Batches up to the epoch `end`."""
    for epoch in count(loader.epoch) if end is None else range(loader.epoch, end):
        assert loader.epoch == epoch, "a loop yields the rest of one epoch"
        yield from loader


def batch_type(names: Sequence[str]) -> Any:
    """Type of batches: a named tuple whose fields may have any names.

    `getattr(batch, "a b")` and `batch._asdict()` have those that are no identifiers.

    >>> batch_type(["x", "class"])(1, 2)._asdict()
    {'x': 1, 'class': 2}
    """
    plain: Any = namedtuple("BatchOfRows", names, rename=True)  # type: ignore[misc] # noqa: PYI024 - as in petastorm
    others = {
        name: property(itemgetter(number))
        for number, name in enumerate(names)
        if name != plain._fields[number] and not hasattr(plain, name)
    }
    return type("BatchOfRows", (plain,), {"__slots__": (), "_fields": tuple(names), **others})


def make_batch_reader(  # noqa: PLR0913, PLR0917 - the signature of petastorm
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: Sequence[Any] | None = None,
    reader_pool_type: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    seed: int | None = None,
    shuffle_rows: bool = False,
    shuffle_row_groups: bool = True,
    shuffle_row_drop_partitions: int = 1,
    predicate: None = None,
    rowgroup_selector: None = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    shard_seed: None = None,
    cache_type: str | None = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    cache_row_size_estimate: int | None = None,
    cache_extra_settings: None = None,
    hdfs_driver: str = "libhdfs3",
    transform_spec: Any = None,
    filters: None = None,
    storage_options: None = None,
    zmq_copy_buffers: bool = True,
    filesystem: None = None,
    convert_early_to_numpy: bool = False,
    *,
    batch_size: int = 1024,
    transform: Transform | None = None,
    lanes: int | None = None,
) -> BatchReader:
    """Make a reader with petastorm's arguments (0.13).

    `docs/coming-from-petastorm.md` has what each argument does here.

    New are `batch_size` (rows of one shard), `lanes` (of `fb.build_plan`) and `transform`, an `fb.Transform` instead of
    a `transform_spec` with a function of pandas frames. Rows are shuffled, not only row groups. Batches of shards are
    equal, and the last rows of an epoch that make no whole batch are dropped.

    Raises:
        InvalidOption: An argument that can never work, has no counterpart here, or would give shards parts of different
            sizes. It is a `ValueError`.
    """
    given = locals()
    for name, remedy in REFUSED.items():
        if given[name] is not None:
            raise InvalidOption(f"make_batch_reader({name}={given[name]!r:.100}) has no counterpart here. {remedy}")
    if isinstance(dataset_url_or_urls, list | tuple) and not dataset_url_or_urls:
        raise InvalidOption("dataset_url_or_urls is an empty list. Name at least one folder or file.")
    _check(reader_pool_type, num_epochs, transform, transform_spec)
    world = _world(cur_shard, shard_count)
    kept_lanes = _lanes(lanes, world, shuffle_row_groups, shuffle_rows, shuffle_row_drop_partitions)
    manifest = scan(dataset_url_or_urls, columns=_columns(dataset_url_or_urls, schema_fields))
    plan = build_plan(manifest, seed=0 if seed is None else seed, lanes=kept_lanes, shuffle=shuffle_row_groups)
    rows = whole_number("batch_size", batch_size, least=1) * world.size
    last: Any = "balance" if shard_count is None else "drop"
    _validate_parts(plan, batch_size, world.size)
    if last == "drop" and rows > plan.num_rows:
        raise InvalidOption(
            f"batch_size={batch_size} of {world.size} shards is more than the {plan.num_rows} rows, and only whole "
            f"batches come: no shard would get one. Give batch_size={max(plan.num_rows // world.size, 1)} or less.",
            batch_size=batch_size,
        )
    plain = ColumnArrays.of(manifest) if transform is None and transform_spec is None else None
    made = transform or (frame_transform(transform_spec) if plain is None else plain.transform)
    cache = _cache(cache_type, cache_location, cache_size_limit)
    options: Any = {"world": world, "global_batch": rows, "last": last, "epochs": num_epochs, "as_numpy": True}
    return BatchReader(Loader(plan, made, cache, **options), num_epochs, plain)


def _check(pool: str, num_epochs: int | None, transform: Transform | None, spec: Any) -> None:
    if pool not in ("thread", "process", "dummy"):
        raise InvalidOption(f"reader_pool_type={pool!r}: give 'thread', 'process' or 'dummy'. It changes nothing here.")
    if num_epochs is not None:
        whole_number("num_epochs", num_epochs, least=1)
    if transform is not None and spec is not None:
        raise InvalidOption("transform= and transform_spec= were both given. Give one of them.")
    validate_type("transform", transform, Transform | None, "an fb.Transform")


def _world(cur_shard: int | None, shard_count: int | None) -> World:
    if (cur_shard is None) != (shard_count is None):
        raise InvalidOption(
            f"cur_shard={cur_shard!r} and shard_count={shard_count!r}: give both, or none to read all rows.",
            cur_shard=cur_shard,
            shard_count=shard_count,
        )
    if cur_shard is None or shard_count is None:
        return World()
    size = whole_number("shard_count", shard_count, least=1)
    return World(rank=whole_number("cur_shard", cur_shard, most=size - 1), size=size)


def _validate_parts(plan: Plan, batch_size: int, shards: int) -> None:
    if has_equal_parts(plan, global_batch=batch_size * shards, world_size=shards):
        return
    lanes = -(-plan.lanes // shards) * shards
    rows = -(-batch_size * shards // lanes) * lanes // shards
    raise InvalidOption(
        f"batch_size={batch_size} gives {shards} shards of {plan.lanes} lanes parts of different sizes. Give "
        f"batch_size={rows} and lanes={lanes}. Another number of lanes changes the order.",
        batch_size=rows,
        lanes=lanes,
    )


def _lanes(lanes: int | None, world: World, shuffle_groups: bool, shuffle_rows: bool, partitions: int) -> int | None:
    """Number of lanes of the plan.

    Without shuffling, each shard has one: its part of the files, in order.
    """
    parts = whole_number("shuffle_row_drop_partitions", partitions, least=1)
    if shuffle_groups:
        return lanes
    if shuffle_rows or parts > 1:
        raise InvalidOption(
            f"shuffle_row_groups=False with shuffle_rows={shuffle_rows!r} and shuffle_row_drop_partitions={parts}: "
            "rows are shuffled with their row groups, or not at all. Leave out one of them."
        )
    if lanes not in (None, world.size):
        raise InvalidOption(
            f"shuffle_row_groups=False keeps the order of the files, and lanes={lanes!r} would be read in turn. Leave "
            "lanes= out.",
            lanes=lanes,
        )
    return world.size


def _columns(url: str | Sequence[str], fields: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Names of the columns that `schema_fields` selects.

    It has names, patterns that match whole names, or petastorm's fields.
    """
    if fields is None:
        return None
    names = [str(getattr(each, "name", each)) for each in ([fields] if isinstance(fields, str) else fields)]
    if all(re.escape(name) == name for name in names):
        return tuple(dict.fromkeys(names))
    known = scan(url).columns
    found = {name: [each for each in known if each == name or _matches(name, each)] for name in names}
    if missing := [name for name, columns in found.items() if not columns]:
        raise InvalidOption(f"schema_fields={missing} match no column. The files have {', '.join(known)}.")
    return tuple(dict.fromkeys(column for columns in found.values() for column in columns))


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:  # the name of another column, such as "price ($"
        return False


def _cache(kind: str | None, location: str | None, limit_bytes: int | None) -> DiskCache | None:
    if kind is None or kind == "null":
        return None
    if kind != "local-disk" or not location or not limit_bytes:
        raise InvalidOption(
            f"cache_type={kind!r}, cache_location={location!r}, cache_size_limit={limit_bytes!r}: give 'null', or "
            "'local-disk' with a folder and its limit in bytes."
        )
    return DiskCache(location, quota_bytes=limit_bytes)


def frame_transform(spec: Any) -> Transform:
    """Return the transform of petastorm's `TransformSpec`.

    `func`, from frame to frame, and the fields that are kept.
    """
    require_package("pandas", "pandas", "transform_spec=")
    kept, removed = tuple(spec.selected_fields or ()), tuple(spec.removed_fields or ())
    return Transform(fn=partial(_arrays, spec.func, kept, removed))


def _arrays(
    func: Callable[[Any], Any] | None, kept: tuple[str, ...], removed: tuple[str, ...], rows: pa.RecordBatch
) -> dict[str, Any]:
    frame = rows.to_pandas()
    if func is not None:
        frame = func(frame)
    names = kept or [name for name in frame.columns if name not in removed]
    # Lists of equal length become rows of one array.
    return {
        name: np.stack(frame[name].to_list()) if frame[name].dtype == object else frame[name].to_numpy(copy=True)
        for name in names
    }
