"""Export of counters and gauges to Prometheus, through Ray.

The only file that imports `ray.util.metrics`.

Ray's agent on each node serves `ray_<name>` for all processes of the node. Checked with Ray 2.60.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ray.util.metrics import Counter, Gauge

from forebay.errors import ForebayError
from forebay.runtime.foreign_code import begin
from forebay.runtime.metrics import GAUGES, METRICS, TAGS, exported_name

FLUSH_S = 3.0
"""Interval of the flushes. Not per block: every change of a Ray metric takes a lock and a message."""
_END_S = 2.0

log = logging.getLogger(__name__)

Numbers = Callable[[], Mapping[str, float]]


class RayMetrics:
    """Metrics of one process, passed to Ray.

    These are the increments of `counted()` since the last flush, and the current values of `measured()`.

    `tags` sets some of `TAGS`. The others are empty.
    """

    def __init__(self, tags: Mapping[str, str], counted: Numbers, measured: Numbers) -> None:
        self._tags = {name: tags.get(name, "") for name in TAGS}
        self._counted, self._measured = counted, measured
        self._flushed: dict[str, float] = {}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def flush(self) -> None:
        """Pass the current numbers to Ray.

        Raises the errors of `measured`.
        """
        for name, total in self._counted().items():
            added = total - self._flushed.get(name, 0.0)
            if added > 0:  # Ray refuses 0
                self._counter(name).inc(added, self._tags)
                self._flushed[name] = total
        for name, value in self._measured().items():
            self._gauge(name).set(value, self._tags)

    def _counter(self, name: str) -> Counter:
        if name not in self._counters:
            self._counters[name] = Counter(exported_name(name), METRICS[name], tuple(TAGS))
        return self._counters[name]

    def _gauge(self, name: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(exported_name(name), GAUGES[name], tuple(TAGS))
        return self._gauges[name]


@contextmanager
def exported(tags: Mapping[str, str], counted: Numbers, measured: Numbers = dict) -> Iterator[None]:
    """Flush `RayMetrics` every 3 s during the block.

    In a separate thread, and once more at the end.
    """
    metrics, over = RayMetrics(tags, counted, measured), threading.Event()

    def run() -> None:
        while not over.wait(FLUSH_S):
            _flush(metrics)
        _flush(metrics)

    thread = begin(threading.Thread(target=run, name="forebay-metrics", daemon=True))
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def _flush(metrics: RayMetrics) -> None:
    try:
        metrics.flush()
    except (ForebayError, OSError) as error:  # raised while the directory of a cache is being removed
        log.debug("no metrics of the cache: %s", error)
