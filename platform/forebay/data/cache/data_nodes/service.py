"""Builder of blocks for other nodes, independent of the transport."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from forebay.data.cache.builders.block_builder import BlockBuilder, BuildOptions
from forebay.data.cache.builders.block_pool import BlockPool
from forebay.data.cache.builders.data_workers import DataWorkers, processes_for
from forebay.data.cache.builders.registered_datasets import BuildFailed, RegisteredDatasets
from forebay.data.cache.builders.worker_processes import DataProcesses
from forebay.data.parquet.footer import FooterCache
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.errors import ForebayError
from forebay.runtime.metrics import Counters

T = TypeVar("T")

_READS_PER_CORE = 2
_LEAST_READS = 8


@dataclass(frozen=True, slots=True)
class SentBlock(Generic[T]):
    """Reply: what `send` returned for the block.

    `sums` are the counters of its build.
    """

    sent: T
    sums: dict[str, float]


class DataNodeService(Generic[T]):
    """Service that builds blocks for other nodes.

    It uses all cores of this node, and stores no block.

    Args:
        num_cores: Number of cores that decode and transform at once.
        send: Called with each block in the thread that built it; it may copy the block.
    """

    def __init__(self, *, num_cores: int, send: Callable[[Block], T]) -> None:
        self.counters = Counters()
        self._send = send
        self._footers = FooterCache()
        self._datasets = RegisteredDatasets(self._make_builder)
        self._processes = DataProcesses(processes_for(num_cores))
        workers = DataWorkers(core_share=1.0, num_reads=max(_LEAST_READS, _READS_PER_CORE * num_cores))
        self._pool: BlockPool[tuple[str, int], SentBlock[T] | BuildFailed | Literal["unknown"]] = BlockPool(
            self._build, workers, num_cores=num_cores
        )
        self.register = self._datasets.register
        self.wait_for_registration = self._datasets.wait_for_registration

    def request(self, dataset_id: str, index: int) -> Future[SentBlock[T] | BuildFailed | Literal["unknown"]]:
        """Request the build of block `index`.

        The reply is "unknown" if the dataset must be registered first.
        """
        return self._pool.submit((dataset_id, index))

    def close(self, timeout_s: float) -> None:
        """Stop the data workers."""
        self._processes.close()
        self._pool.close(timeout_s)

    def _build(self, task: tuple[str, int]) -> SentBlock[T] | BuildFailed | Literal["unknown"]:
        dataset_id, index = task
        if (found := self._datasets.builder(dataset_id)) is None:
            return "unknown"
        builder, counters = found
        before = counters.as_dict()
        try:
            return SentBlock(self._send(builder.read(index)), counters.since(before))
        except ForebayError as error:
            trace = "".join(traceback.format_exception(error))
            return BuildFailed(error=error, trace=trace, sums=counters.since(before))
        finally:
            self.counters.merge(counters.since(before))

    def _make_builder(self, dataset_id: str, dataset: Dataset, counters: Counters) -> BlockBuilder:
        workers = self._processes.of(dataset_id, dataset, None)
        options = BuildOptions(footers=self._footers, cores=self._pool.cores, workers=workers)
        return BlockBuilder(dataset, None, counters=counters, options=options)
