"""pyarrow's Parquet decoder alone: the limit of a cold epoch.

A pool of as many threads as the loaders may use decodes row groups in file order, a few ahead. Nothing is packed,
shuffled or kept. With `use_threads=False`, the pool decides how many cores work, not Arrow's own pool:
https://arrow.apache.org/docs/python/parquet.html
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.loader.features import KINDS
from bench.loader.setting import LoaderFacts, LoaderSetting


class ArrowDecode:
    """Decoded columns, one row group after the other."""

    facts = LoaderFacts(
        version=f"pyarrow {pa.__version__}",
        shuffled="no",
        packed="no: columns of one row group",
        deterministic="yes",
        note="a limit, not a loader: a row group is a batch",
    )

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._local = threading.local()
        self._threads = 1 if setting.variant == "one thread" else setting.threads
        self._pool = ThreadPoolExecutor(self._threads)

    def prepare(self) -> None:
        """Do nothing: no conversion is needed."""

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002 - the order of the files
        tasks = [
            (path, index) for path in self._setting.files for index in range(pq.read_metadata(path).num_row_groups)
        ]
        running = deque(self._pool.submit(self._decode, *task) for task in tasks[: 2 * self._threads])
        for task in [*tasks[len(running) :], *[None] * len(running)]:
            table = running.popleft().result()
            if task:
                running.append(self._pool.submit(self._decode, *task))
            yield _columns(table, self._setting.kind)

    def close(self) -> None:
        self._pool.shutdown()

    def _decode(self, path: Path, index: int) -> pa.Table:
        files = self._local.__dict__
        if path not in files:
            files[path] = pq.ParquetFile(path)
        return files[path].read_row_group(index, use_threads=False)


def _columns(table: pa.Table, kind: str) -> dict[str, Any]:
    """Views of the decoded columns. The bytes of strings and lists stay where they are."""
    names = [name for names in KINDS[kind].groups.values() for name in names]
    return {name: table[name].chunk(0).to_numpy() for name in (*names, "label")}


open_system = ArrowDecode
