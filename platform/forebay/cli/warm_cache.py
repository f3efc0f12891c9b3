"""Filling caches before a job needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from forebay.cli.job_file import job_of
from forebay.cli.output import only_the_document, print_json, print_table, progress_bar
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.disk.lease import named_user
from forebay.data.cache.source import BlockSource, LocalCache, SourceProvider, open_source
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.errors import InvalidOption
from forebay.runtime.formatting import bytes_text
from forebay.runtime.metrics import Counters
from forebay.training.job.job import Job

_LEAST_PENDING, _MOST_PENDING = 8, 160
"""Number of concurrent requests: the most reads in flight, and more that wait for them."""
_PENDING_BYTES = 512 << 20
"""Bytes in Parquet of concurrent requests. Blocks that do not fit stay in memory until their turn."""
_COUNTED = ("hits", "stores", "bypasses", "peer_hits", "stored_bytes", "source_bytes", "peer_bytes")


def warm_job(path: str, words: Sequence[str], *, all_nodes: bool, as_json: bool) -> bool:
    """Warm the caches for a job file.

    Prints a summary. Returns False if some blocks did not fit.
    """
    with only_the_document(as_json):
        job = job_of(path, words)
        job.check()
        counters = _warm_nodes(job, _caches(job, all_nodes=all_nodes))
    if as_json:
        print_json(
            {
                node: {name: each[name] for name in _COUNTED} | {"num_reads": _num_reads(each)}
                for node, each in counters.items()
            }
        )
    else:
        print_table(("node", *_COUNTED, "num_reads"), [(node, *_cells(each)) for node, each in counters.items()])
    return not any(each["bypasses"] for each in counters.values())


def _cells(counters: Counters) -> list[str]:
    counted = [bytes_text(counters[name]) if name.endswith("_bytes") else f"{counters[name]:.0f}" for name in _COUNTED]
    return [*counted, f"{_num_reads(counters):.1f}"]


def _num_reads(counters: Counters) -> float:
    """Mean number of concurrent reads allowed.

    0 if none was read.
    """
    num_read = counters["stores"] + counters["bypasses"] - counters["peer_hits"]
    return counters["reads_allowed"] / num_read if num_read else 0.0


def _caches(job: Job, *, all_nodes: bool) -> dict[str, DiskCache | SourceProvider]:
    if job.cache is None:
        raise InvalidOption("This job has cache=None, so there is nothing to warm. Give the job a CacheSpec.")
    if not all_nodes:
        return {"this node": LocalCache(job.cache)}
    from forebay.data.cache.node.client import attach_all  # noqa: PLC0415 - only this option needs Ray, and it is slow to import

    return dict(attach_all(job.cache))


def _warm_nodes(job: Job, caches: dict[str, DiskCache | SourceProvider]) -> dict[str, Counters]:
    """Fill all caches at once, with one thread per node.

    The nodes do the work. Prints a line for each and for all.
    """
    datas = [job.data] if job.held_out is None else [job.data, job.held_out]
    datasets = [dataset for data in datas for dataset in data.datasets]
    node_bytes = sum(dataset.manifest.num_bytes for dataset in datasets)
    with progress_bar(in_bytes=True) as bar, ThreadPoolExecutor(len(caches)) as pool:
        tasks = {node: [bar.add_task(node, total=node_bytes)] for node in caches}
        if len(caches) > 1:
            every = bar.add_task(f"{len(caches)} nodes", total=node_bytes * len(caches))
            tasks = {node: [*own, every] for node, own in tasks.items()}

        def advance(node: str, num_bytes: int) -> None:
            for task in tasks[node]:
                bar.advance(task, num_bytes)

        futures = {node: pool.submit(_warm_node, datasets, caches[node], partial(advance, node)) for node in caches}
        return {node: future.result() for node, future in futures.items()}


def _warm_node(
    datasets: Sequence[Dataset], cache: DiskCache | SourceProvider, advance: Callable[[int], None]
) -> Counters:
    counters = Counters()
    for dataset in datasets:
        with named_user("forebay warm"):
            source = open_source(cache, dataset, counters)
        try:
            for done in _requested(source, dataset.manifest.bytes.tolist()):
                advance(int(dataset.manifest.bytes[done]))
        finally:
            source.close()
    return counters


def _requested(source: BlockSource, block_bytes: Sequence[int]) -> Iterator[int]:
    """Request every block, a bounded number at a time.

    Yields the index of each block that has arrived.
    """
    pending: deque[tuple[int, Future[Block]]] = deque()
    pending_bytes = 0
    for index, num_bytes in enumerate(block_bytes):
        while len(pending) >= _LEAST_PENDING and (
            len(pending) >= _MOST_PENDING or pending_bytes + num_bytes > _PENDING_BYTES
        ):
            done = _finish(pending)
            pending_bytes -= block_bytes[done]
            yield done
        pending.append((index, source.request(index)))
        pending_bytes += num_bytes
    while pending:
        yield _finish(pending)


def _finish(pending: deque[tuple[int, Future[Block]]]) -> int:
    index, future = pending.popleft()
    future.result()
    return index
