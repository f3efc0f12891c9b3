"""Choice of the source by the kind of cache."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.local_source import LocalSource
from forebay.data.cache.source import BlockSource, open_source
from forebay.data.sources.scan import scan
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.runtime.metrics import Counters


class Elsewhere:
    """Provider that is its own source."""

    def source(self, dataset: Dataset, counters: Counters) -> BlockSource:
        return self

    def request(self, index: int) -> Future[Block]:
        raise NotImplementedError

    def close(self, timeout_s: float = 5.0) -> None: ...


def test_disk_cache_and_none_are_served_by_this_process(parquet_folder: Callable[..., Path], cache: DiskCache) -> None:
    dataset = Dataset(scan(parquet_folder({"a.parquet": [3]})), Transform(x=Dense("x0")))
    for given in (cache, None):
        source = open_source(given, dataset, Counters())
        assert isinstance(source, LocalSource)
        assert source.request(0).result(10).rows == 3
        source.close()


def test_a_provider_serves_itself(parquet_folder: Callable[..., Path]) -> None:
    provider = Elsewhere()
    dataset = Dataset(scan(parquet_folder({"a.parquet": [3]})), Transform(x=Dense("x0")))
    assert open_source(provider, dataset, Counters()) is provider
