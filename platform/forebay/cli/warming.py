"""Filling caches before a job needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from rich.progress import Progress

from forebay.cache.disk import DiskCache
from forebay.cache.source import BlockSource, SourceProvider, open_source
from forebay.cli.output import only_the_document, print_json, print_table, progress_bar
from forebay.cli.recipe import job_of
from forebay.errors import CacheUnusable
from forebay.job.job import Job
from forebay.observe import Tally
from forebay.transform.block import Block

_PENDING = 8
"""Requests that are open at once: enough to keep a node's data workers busy, few enough to bound memory."""
_COUNTED = ("hits", "stores", "bypasses", "stored_bytes", "source_bytes")


def warm_job(path: str, words: Sequence[str], *, all_nodes: bool, as_json: bool) -> bool:
    """Warm the caches for a job file and say what was done. False if some blocks did not fit."""
    with only_the_document(as_json):
        job = job_of(path, words)
        job.check()
        tallies = _warm_nodes(job, _caches(job, all_nodes=all_nodes))
    if as_json:
        print_json({node: {name: tally[name] for name in _COUNTED} for node, tally in tallies.items()})
    else:
        rows = [(node, *(f"{tally[name]:.0f}" for name in _COUNTED)) for node, tally in tallies.items()]
        print_table(("node", *_COUNTED), rows)
    return not any(tally["bypasses"] for tally in tallies.values())


def _caches(job: Job, *, all_nodes: bool) -> dict[str, DiskCache | SourceProvider]:
    if job.cache is None:
        raise CacheUnusable("This job has cache=None, so there is nothing to warm. Give the job a CacheSpec.")
    if not all_nodes:
        return {"this node": job.cache.open()}
    from forebay.cache.node import attach_all  # noqa: PLC0415 - only this option needs Ray, and it is slow to import

    return dict(attach_all(job.cache))


def _warm_nodes(job: Job, caches: dict[str, DiskCache | SourceProvider]) -> dict[str, Tally]:
    """Fill all caches at once, one thread a node: the nodes do the work."""
    with progress_bar(in_bytes=True) as bar, ThreadPoolExecutor(len(caches)) as pool:
        futures = {node: pool.submit(_warm_node, job, cache, bar, node) for node, cache in caches.items()}
        return {node: future.result() for node, future in futures.items()}


def _warm_node(job: Job, cache: DiskCache | SourceProvider, bar: Progress, node: str) -> Tally:
    tally = Tally()
    datas = [job.data] if job.held_out is None else [job.data, job.held_out]
    task = bar.add_task(node, total=sum(data.plan.manifest.num_bytes for data in datas))
    for data in datas:
        source = open_source(cache, data.plan.manifest, data.transform, tally)
        try:
            for done in _requested(source, len(data.plan.manifest)):
                bar.advance(task, int(data.plan.manifest.bytes[done]))
        finally:
            source.close()
    return tally


def _requested(source: BlockSource, num_blocks: int) -> Iterator[int]:
    """Ask for every block, a few at a time; yields the index of each that has come."""
    pending: deque[tuple[int, Future[Block]]] = deque()
    for index in range(num_blocks):
        pending.append((index, source.request(index)))
        if len(pending) == _PENDING:
            yield _finish(pending)
    while pending:
        yield _finish(pending)


def _finish(pending: deque[tuple[int, Future[Block]]]) -> int:
    index, future = pending.popleft()
    future.result()
    return index
