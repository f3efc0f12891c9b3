"""A dataset, a cache actor in whose process faults can be staged, and the end of both."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from tests.ray.faults.cluster import PATIENCE_S, cache_actors, here, living, until
from tests.ray.faults.faulty import FaultOrders, faulty_class
from tests.soak.dataset import SoakSetting, draw
from tests.soak.guards import check_cache

import forebay as fb
from forebay.data.cache.node import client as node
from forebay.data.cache.source import BlockSource
from forebay.data.cache.spec import CacheSpec
from forebay.ray_cluster.actors import NAMESPACE
from forebay.runtime.metrics import Counters


@dataclass(frozen=True)
class Attached:
    """A loader's cache: the actor of the loader's node. It replaces `tests.soak.dataset.Disk`.

    With `own_disks` the nodes, which are one machine here, do not share a folder.
    """

    disk: fb.DiskCache
    own_disks: bool = False

    def spec(self, node_id: str = "") -> CacheSpec:
        """Spec for a node, by default the node of the caller."""
        path = str(self.disk.path)
        if self.own_disks:
            path += f"-{(node_id or ray.get_runtime_context().get_node_id())[:12]}"
        return CacheSpec(path=path, quota_bytes=self.disk.quota_bytes, min_free_bytes=self.disk.min_free_bytes)

    def source(self, dataset: fb.Dataset, counters: Counters) -> BlockSource:
        return node.attach(self.spec()).source(dataset, counters)


@dataclass(frozen=True)
class Stage:
    """Two views of one dataset: `setting` reads through the actor, `local` without Ray."""

    local: SoakSetting
    setting: SoakSetting
    orders: FaultOrders

    def actor_pid(self) -> int:
        """The process of the newest actor, once there is one."""
        until(self.orders.pids, "a cache actor")
        return self.orders.pids()[-1]

    def signal_actor(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.actor_pid(), number)

    def start_actor(self, node_id: str) -> int:
        """Start the faulty actor of a node before a sound one could start there. Returns its process id."""
        client = node.NodeCacheClient(self.setting.cache.spec(node_id), node_id, is_here=False)
        return int(client.facts()["pid"])

    def disks(self) -> list[Path]:
        """The folders of all caches."""
        return sorted(path for path in self.local.folder.glob("cache*") if path.is_dir())


@contextmanager
def staged(
    rng: random.Random,
    folder: Path,
    *,
    drag_s: float = 0.0,
    own_disks: bool = False,
    transform: Callable[[SoakSetting, FaultOrders], fb.Transform] = lambda setting, orders: setting.transform,
    **drawn: Any,
) -> Iterator[Stage]:
    """Draw a dataset and prepare to start faulty actors for its cache. Checks at the end that all is in order.

    Every opening of a Parquet file takes `drag_s`, so that an epoch lasts long enough to be disturbed.
    """
    # Ray's processes end with the thread that started them. A case that first uses Ray in a new thread
    # would end the cluster with that thread.
    here()
    local = draw(rng, folder / "set", **{"cached": True, **drawn})
    orders = FaultOrders(folder / "orders")
    true_class, node.NodeCache = node.NodeCache, faulty_class(orders.folder)
    orders.always("drag", drag_s)
    local = replace(local, transform=transform(local, orders))
    stage = Stage(local, replace(local, cache=Attached(local.disk, own_disks)), orders)
    try:
        yield stage
    finally:
        node.NodeCache = true_class
        end_actors(orders)
        here().heal()
    for path in stage.disks():
        check_cache(local.with_disk(fb.DiskCache(path, quota_bytes=local.disk.quota_bytes, min_free_bytes=0)))
    check_object_store()


def end_actors(orders: FaultOrders) -> None:
    """End the cache actors of a case, and wait until their processes have ended."""

    def is_over() -> bool:
        for name in cache_actors():  # also an actor that was just starting
            with suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        return not living()

    until(is_over, "the end of all actors and placement groups")
    for pid in orders.pids():
        with suppress(ProcessLookupError):  # a stopped process does not react to Ray
            os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(is_running, orders.pids())), "the end of the actors' processes")


def is_running(pid: int) -> bool:
    """Whether a process, or a thread of it, may still hold a file or a lock."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE or threads > 1
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False


def check_object_store() -> None:
    """Check that the object store of this node holds no object of the case any more."""
    until(lambda: held_bytes() < 1 << 20, "the object store to be empty again")


def held_bytes() -> int:
    from ray._private.internal_api import node_stats

    mine = next(node for node in ray.nodes() if node["NodeID"] == here().head)
    stats = node_stats(mine["NodeManagerAddress"], mine["NodeManagerPort"], include_memory_info=False)
    return int(stats.store_stats.object_store_bytes_used)


@contextmanager
def striking(rng: random.Random, times: int, most_s: float, strike: Callable[[], object]) -> Iterator[None]:
    """Call `strike` `times` times at random moments, the last one within about `times * most_s` seconds."""
    waits, stop, errors = [rng.uniform(0, most_s) for _ in range(times)], threading.Event(), []

    def run() -> None:
        for wait_s in waits:
            if stop.wait(wait_s):
                return
            try:
                strike()
            except BaseException as error:  # noqa: BLE001 - raised in the thread of the case
                errors.append(error)
                return

    thread = threading.Thread(target=run, name="striking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]


def timed(work: Callable[[], object]) -> float:
    """Run `work()`. Returns the seconds that it takes."""
    start = time.monotonic()
    work()
    return time.monotonic() - start
