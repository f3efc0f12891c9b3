"""Petastorm's `make_batch_reader`, over a plan and a cache."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.bridges.equal_parts import validate_equal_parts
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.loader.loader import Loader
from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Label
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, WrongType
from forebay.runtime.extras import require_package
from forebay.world import World

_WITHOUT_MEANING = {"reader_pool_type", "workers_count", "results_queue_size", "hdfs_driver", "cache_row_size_estimate"}
"""Arguments about petastorm's own threads and caches."""


class BatchReader(AbstractContextManager["BatchReader"]):
    """Reader of `num_epochs` epochs.

    Yields named tuples of NumPy arrays [rows, ...]. Its state is the loader's.
    """

    def __init__(self, loader: Loader, num_epochs: int | None) -> None:
        self.loader, self._num_epochs = loader, num_epochs
        self.state_dict, self.load_state_dict, self.stop = loader.state_dict, loader.load_state_dict, loader.close

    def __iter__(self) -> Iterator[Any]:
        kind: Any = None
        first = self.loader.epoch
        for epoch in count(first) if self._num_epochs is None else range(first, self._num_epochs):
            assert self.loader.epoch == epoch, "a loop yields the rest of one epoch"
            for batch in self.loader:
                kind = kind or namedtuple("BatchOfRows", batch)  # noqa: PYI024 - as in petastorm
                yield kind(**batch)

    def join(self) -> None:
        """Nothing: `stop` has waited for all threads."""

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_batch_reader(  # noqa: PLR0913 - the signature of petastorm
    dataset_url: str | Sequence[str],
    schema_fields: Sequence[str] | None = None,
    *,
    batch_size: int = 1024,
    transform: Transform | None = None,
    transform_spec: Any = None,
    num_epochs: int | None = 1,
    cur_shard: int | None = None,
    shard_count: int | None = None,
    seed: int | None = 0,
    lanes: int | None = None,
    shuffle_row_groups: bool = True,
    cache_type: str = "null",
    cache_location: str | None = None,
    cache_size_limit: int | None = None,
    **others: Any,
) -> BatchReader:
    """Make a reader with petastorm's arguments.

    `docs/coming-from-petastorm.md` has what differs.

    New are `batch_size` (rows of one shard), `lanes` (of `fb.build_plan`) and `transform`, an `fb.Transform` instead of
    a `transform_spec` with a function of pandas frames. Rows are shuffled, not only row groups.
    Batches of shards are equal, and the last rows of an epoch that make no whole batch are dropped.

    Raises:
        InvalidOption: An argument that has no counterpart here, or shards that would get parts of different sizes.
    """
    if unknown := sorted(others.keys() - _WITHOUT_MEANING):
        raise InvalidOption(
            f"make_batch_reader({unknown[0]}=...) has no counterpart: see docs/coming-from-petastorm.md."
        )
    manifest = scan(dataset_url, columns=schema_fields)
    plan = build_plan(manifest, seed=seed or 0, lanes=lanes, shuffle=shuffle_row_groups)
    world = World(rank=cur_shard or 0, size=shard_count or 1)
    rows, last = batch_size * world.size, "balance" if shard_count is None else "drop"
    validate_equal_parts(plan, global_batch=rows, last=last, world_size=world.size)  # type: ignore[arg-type]
    made = transform or (plain_transform(manifest) if transform_spec is None else frame_transform(transform_spec))
    cache = _cache(cache_type, cache_location, cache_size_limit)
    options: Any = {"world": world, "global_batch": rows, "last": last, "epochs": num_epochs, "as_numpy": True}
    return BatchReader(Loader(plan, made, cache, **options), num_epochs)


def _cache(kind: str, location: str | None, limit_bytes: int | None) -> DiskCache | None:
    if kind == "null":
        return None
    if kind != "local-disk" or not location or not limit_bytes:
        raise InvalidOption(
            f"cache_type={kind!r}, cache_location={location!r}, cache_size_limit={limit_bytes!r}: give 'null', or "
            "'local-disk' with a folder and its limit in bytes."
        )
    return DiskCache(location, quota_bytes=limit_bytes)


def plain_transform(manifest: Manifest) -> Transform:
    """Return a transform that keeps each column as an array.

    Raises `WrongType` unless all are numbers.
    """
    types = {field.name: np.dtype(parse_type(field.type).to_pandas_dtype()) for field in manifest.fields}
    if others := sorted(name for name, dtype in types.items() if dtype.kind not in "biuf"):
        raise WrongType(
            f"the columns {others} hold no numbers. Name the others in schema_fields=, or give a "
            "transform=fb.Transform(...) that makes numbers of them.",
            columns=tuple(others),
        )
    features: dict[str, Any] = {name: Label(name, dtype=dtype.name) for name, dtype in types.items()}
    return Transform(**features)


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
