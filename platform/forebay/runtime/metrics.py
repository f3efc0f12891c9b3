"""Named counters of events and seconds.

There is one set per loader, node or epoch.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from forebay.errors import InvalidOption

METRICS: dict[str, str] = {
    "hits": "blocks served from the cache",
    "hit_bytes": "bytes of blocks served from the cache",
    "stores": "blocks that came from the source or another node, and were stored in the cache",
    "stored_bytes": "bytes of blocks stored in the cache",
    "bypasses": "blocks that came from the source or another node, and were handed out uncached",
    "bypass_bytes": "bytes of blocks handed out uncached",
    "peer_hits": "blocks that another node had in its cache, read from there instead of the source",
    "peer_bytes": "bytes of blocks read from other nodes",
    "data_node_blocks": "blocks that a data node built for this node",
    "data_node_bytes": "bytes of blocks that data nodes built for this node",
    "quarantined": "cache files whose checksum or form was wrong; each is fetched again",
    "parquet_opens": "Parquet files opened to read a row group",
    "source_bytes": "compressed bytes of the row groups read from the source",
    "reads_allowed": "row groups that might be read at once, added up over all that were read",
    "retries": "reads that were tried again",
    "remote_read_s": "seconds spent reading the pages of row groups from storage, over all data workers",
    "decode_s": "seconds spent decoding Parquet pages, over all data workers",
    "transform_s": "seconds spent in the transform, over all data workers",
    "write_s": "seconds spent writing blocks to the cache, over all data workers",
    "peer_s": "seconds spent reading blocks from other nodes, over all data workers",
    "data_node_s": "seconds spent waiting for blocks that data nodes built, over all data workers",
    "map_s": "seconds spent mapping and verifying cached blocks",
    "plan_s": "seconds the gather waited for the order, or asked for blocks",
    "block_wait_s": "seconds the gather waited for blocks",
    "gather_s": "seconds spent gathering rows into batches",
    "augment_s": "seconds spent in the augment, in the gathering thread",
    "copy_s": "seconds the trainer spent handing batches to its device",
    "wait_s": "seconds the trainer waited for a batch",
    "batches": "batches handed to the trainer",
    "rows": "rows handed to the trainer by this rank",
}
"""Name -> meaning of every counter. Names end in their unit (`_s` seconds, `_bytes`). The rest are counts."""

GAUGES: dict[str, str] = {
    "cache_used_bytes": "bytes that count against the quota of a cache directory",
    "cache_quota_bytes": "bytes that a cache directory may take",
    "num_reads": "row groups that the cache of a node may read at once, as chosen now",
}
"""Name -> meaning of every value that is measured instead of counted."""

TAGS: dict[str, str] = {
    "role": "`trainer`: what a rank of a run got and did; `cache`: what the cache of a node made, for all "
    "runs; `data`: what a data node built for the caches of other nodes",
    "node": "the first 12 digits of the id that Ray gave to the node",
    "run": "the name of the run; empty for the cache of a node",
    "directory": "the directory of the cache; empty for a trainer",
}
"""Name -> meaning of the labels of each exported metric. A trainer also counts what the cache made for it."""


_live: weakref.WeakSet[Counters] = weakref.WeakSet()


def exported_name(metric: str) -> str:
    """Name of a counter or gauge in Prometheus.

    `forebay_`, base units in full, and `_total` for counters.

    https://prometheus.io/docs/practices/naming/

    >>> exported_name("wait_s"), exported_name("hits"), exported_name("cache_used_bytes")
    ('forebay_wait_seconds_total', 'forebay_hits_total', 'forebay_cache_used_bytes')
    """
    if metric in GAUGES:
        return f"forebay_{metric}"
    name = f"{metric.removesuffix('_s')}_seconds" if metric.endswith("_s") else metric
    return f"forebay_{name}_total"


class Counters:
    """Thread-safe sums of the counters in `METRICS`."""

    def __init__(self, start: Mapping[str, float] | None = None) -> None:
        # Reentrant: the garbage collector may end a loader with the same counters in any line.
        self._lock = threading.RLock()
        _live.add(self)
        self._sums: dict[str, float] = {}
        self.merge(start or {})

    def add(self, name: str, amount: float = 1) -> None:
        """Add `amount` to the counter `name`.

        Raises `InvalidOption` for a name that is not in `METRICS`.
        """
        _require_metric(name)
        with self._lock:
            self._sums[name] = self._sums.get(name, 0) + amount

    def merge(self, sums: Mapping[str, float]) -> None:
        """Add each of `sums` to its counter, all at once.

        Raises `InvalidOption` as `add` does.
        """
        if not METRICS.keys() >= sums.keys():  # one call: a trainer that comes back from its step waits for it
            for name in sums:
                _require_metric(name)
        with self._lock:
            for name, amount in sums.items():
                self._sums[name] = self._sums.get(name, 0) + amount

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the block's wall time (s) to counter `name`.

        Also if the block raises.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child.

        A thread that does not exist there may hold the inherited one.
        """
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> float:
        with self._lock:
            return self._sums.get(name, 0)

    def as_dict(self) -> dict[str, float]:
        """Copy of all sums, by name.

        Leaves out counters that were never added to.
        """
        with self._lock:
            return dict(self._sums)

    def since(self, earlier: Mapping[str, float]) -> dict[str, float]:
        """Sums added since `earlier = counters.as_dict()`."""
        return {name: total - earlier.get(name, 0) for name, total in self.as_dict().items()}


class HeldCounters(Counters):
    """Counters that go to others, at once or later.

    What is made for the next epoch is held until that epoch begins. Thread-safe.
    """

    def __init__(self, to: Counters) -> None:
        self.to, self._is_held = to, False
        super().__init__()

    def add(self, name: str, amount: float = 1) -> None:
        """Add `amount` to the counter `name`."""
        self.merge({name: amount})

    def merge(self, sums: Mapping[str, float]) -> None:
        """Add each of `sums` to its counter."""
        with self._lock:
            if self._is_held:
                for name, amount in sums.items():
                    self._sums[name] = self._sums.get(name, 0) + amount
                return
        self.to.merge(sums)

    def hold(self) -> None:
        """Keep what is counted from now on."""
        with self._lock:
            self._is_held = True

    def release(self) -> None:
        """Pass on what was kept, and all that follows."""
        with self._lock:
            kept, self._sums, self._is_held = self._sums, {}, False
        self.to.merge(kept)


def _renew_locks() -> None:
    for counters in list(_live):
        counters.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


def _require_metric(name: str) -> None:
    if name not in METRICS:
        raise InvalidOption(f"{name!r} is not a metric. Add it to forebay.runtime.metrics.METRICS with its meaning.")
