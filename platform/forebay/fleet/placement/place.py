"""Placement: clusters ranked for one task, with reasons.

Pure.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from forebay.fleet.cluster import Cluster, Market, Sku
from forebay.fleet.placement.capacity import Capacity, Gang, NodeGroup, PoolRemainder, Shape
from forebay.fleet.placement.history import PlacementHistory
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.spec.quantity import millicpus, nbytes

OLDEST_S = 90.0
"""Age above which figures place nothing."""
PRICE_STEP = 1.25
"""Prices within this factor of the cheapest choice count as equal: filled nodes are worth more than the difference."""
WARM_S = 3 * 86_400.0
"""Time for which a cluster that ran the job may still have its blocks."""
_KEPT_CACHES = ("hostPath",)


class Fit(IntEnum):
    """Whether a gang fits, the best first."""

    LARGEST_NOW = 0
    SMALLEST_NOW = 1
    AFTER_GROWTH = 2
    NOT_NOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Room of a placed attempt without counted pods."""

    attempt: str
    cluster: str
    gang: Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Facts of a fleet for placement.

    `held` is by cluster and pool: the name of the run that waits for its room.
    """

    clusters: tuple[Cluster, ...]
    capacities: Mapping[str, Capacity]
    reservations: tuple[CapacityReservation, ...] = ()
    held: Mapping[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChoice:
    """Pool that a task may use, full or not.

    `gang` is its smallest one.
    """

    cluster: Cluster
    sku: str
    market: Market
    gang: Gang
    price_per_hour: float | None

    @property
    def machine(self) -> Shape:
        """An empty machine of the pool."""
        return machine_of(self.cluster.sku[self.sku])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """A way to run a task now or after growth.

    It is a cluster, a SKU, a market, and the number of workers at first. `is_head_apart` means that the head has room
    on a node that is none of the workers', and is to go there.
    """

    cluster: str
    sku: str
    market: Market
    fit: Fit
    workers: int
    gang: Gang
    price_per_hour: float | None
    reason: str
    remainder: PoolRemainder
    is_head_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a task cannot run on a cluster now."""

    cluster: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Choices for a task, best first, and refusals."""

    choices: tuple[PlacementChoice, ...]
    refusals: tuple[Refusal, ...]

    @property
    def best(self) -> PlacementChoice | None:
        """The choice to take now, or None without capacity."""
        return self.choices[0] if self.choices else None


def place(spec: JobSpec, task: Task, view: FleetView, history: PlacementHistory, now: float) -> Placement:
    """Rank the clusters of a fleet for a task.

    The order: whether an attempt of the job failed there in the last 10 minutes, whether the largest or the smallest
    gang fits now or after growth, the order of SKUs in the job file, clusters that may have the data on their disks,
    spot machines where they are preferred, the price in steps of `PRICE_STEP`, the fewest empty nodes to begin, the
    least room left in the pool, the price, GPUs that others wait for, and a hash.
    """
    return _Question(spec, task, view, history, now).answer()


def usable_pools(
    spec: JobSpec, task: Task, view: FleetView, history: PlacementHistory, now: float
) -> Iterator[PoolChoice]:
    """Yield pools that a task may use, full or not."""
    question = _Question(spec, task, view, history, now)
    for cluster in view.clusters:
        if cluster.kind == "cluster" and question.closed(cluster) is None:
            for found in question.pools(cluster):
                if isinstance(found, PoolChoice):
                    yield found


@dataclass(frozen=True, slots=True)
class _Question:
    spec: JobSpec
    task: Task
    view: FleetView
    history: PlacementHistory
    now: float

    def answer(self) -> Placement:
        choices: list[PlacementChoice] = []
        refusals: list[Refusal] = []
        for cluster in self.view.clusters:
            reason = self.closed(cluster)
            if reason is not None:
                refusals.append(Refusal(cluster=cluster.name, reason=reason))
                continue
            left = self._left(self.view.capacities[cluster.name])
            tried = [each if isinstance(each, str) else self._try(each, left) for each in self.pools(cluster)]
            found = [each for each in tried if isinstance(each, PlacementChoice)]
            choices += found
            if not found:
                text = "; ".join(dict.fromkeys(str(each) for each in tried)) or self._no_option(cluster)
                refusals.append(Refusal(cluster=cluster.name, reason=text))
        return Placement(
            choices=tuple(self._ranked(choices)),
            refusals=tuple(sorted(refusals, key=lambda each: each.cluster)),
        )

    def closed(self, cluster: Cluster) -> str | None:
        """Return why a cluster is closed to the job."""
        scheduling = self.spec.scheduling
        reason = cluster.is_allowed(scheduling.clusters, scheduling.deny)
        if reason is not None:
            return reason
        if not cluster.sku:
            return self._unknown(self.view.capacities.get(cluster.name)) or "its catalogue was not read"
        if scheduling.queue is not None and scheduling.queue not in cluster.queues:
            return f"it has no queue {scheduling.queue}"
        if scheduling.priority != "normal" and scheduling.priority not in cluster.priorities:
            return f"it has no priority class {scheduling.priority}"
        if scheduling.cluster == "shared" and cluster.shared_cluster is None:
            return "it has no shared Ray cluster"
        return self._unknown(self.view.capacities.get(cluster.name))

    def _unknown(self, capacity: Capacity | None) -> str | None:
        if capacity is None:
            return "its free room is unknown"
        age = self.now - capacity.observed_at
        return capacity.fault or (f"its figures are {age:.0f} s old" if age > OLDEST_S else None)

    def pools(self, cluster: Cluster) -> Iterator[PoolChoice | str]:
        """Yield usable pools of a cluster, or refusals."""
        for sku in self._skus(cluster):
            for market in self._markets(cluster.sku[sku]):
                yield self._pool(cluster, sku, market)

    def _pool(self, cluster: Cluster, sku: str, market: Market) -> PoolChoice | str:
        where = f"{sku} {market}"
        if (refusal := self.history.refusal((cluster.name, sku, market), self.now)) is not None:
            return f"{where} {refusal}"
        gang = gang_of(self.spec, self.task, cluster, sku, market)
        price = self._price(cluster.sku[sku], market, gang.worker)
        limit = self.spec.scheduling.max_price_per_hour
        if limit is not None and (price is None or price > limit):
            shown = "has no known price" if price is None else f"costs {price:.2f}/h, more than {limit:g}"
            return f"{where} {shown}"
        holder = self.view.held.get((cluster.name, gang.pool))
        if holder is not None and holder != self.spec.run_name(self.task):
            return f"the room on {where} is held for {holder}, which waited longer"
        return PoolChoice(cluster=cluster, sku=sku, market=market, gang=gang, price_per_hour=price)

    def _try(self, pool: PoolChoice, left: Capacity) -> PlacementChoice | str:
        cluster, gang, where = pool.cluster, pool.gang, f"{pool.sku} {pool.market}"
        fit, workers = self._fit(pool, left)
        if fit is Fit.NOT_NOW:
            free = left.free_slots(gang.pool, gang.worker)
            lack = "for the head beside them" if free >= gang.workers else f"for {free} workers"
            return f"{where} has room {lack} now, and {gang.workers} are needed"
        return PlacementChoice(
            cluster=cluster.name,
            sku=pool.sku,
            market=pool.market,
            fit=fit,
            workers=workers,
            gang=replace(gang, workers=workers),
            price_per_hour=pool.price_per_hour,
            reason=self._reason(cluster, where, fit, workers, pool.price_per_hour),
            remainder=replace(gang, workers=workers).remainder(left.nodes, pool.machine),
            is_head_apart=gang.head_fits_apart(left.nodes) and _labels_tell(pool),
        )

    def _fit(self, pool: PoolChoice, left: Capacity) -> tuple[Fit, int]:
        least, largest = self.task.workers.min, self.task.workers.largest
        gang = pool.gang
        if pool.cluster.kind == "manager":
            return Fit.AFTER_GROWTH, least
        most = left.most(gang)
        if most >= least:
            return (Fit.LARGEST_NOW, largest) if most >= largest else (Fit.SMALLEST_NOW, most)
        if left.can_add and gang.most(left.grown(gang.pool, pool.machine).nodes) >= least:
            return Fit.AFTER_GROWTH, least
        return Fit.NOT_NOW, least

    def _left(self, capacity: Capacity) -> Capacity:
        """Return the capacity less what is reserved.

        Of a gang that no longer fits, as many workers as fit are taken.
        """
        here = [each for each in self.view.reservations if each.cluster == capacity.cluster]
        nodes = capacity.nodes
        for each in sorted(here, key=lambda one: one.attempt):
            nodes = taken(nodes, each.gang)
        return replace(capacity, nodes=nodes) if here else capacity

    def _skus(self, cluster: Cluster) -> list[str]:
        named = self.task.workers.sku or tuple(sorted(cluster.sku))
        return [name for name in named if name in cluster.sku and self._suits(cluster.sku[name])]

    def _suits(self, sku: Sku) -> bool:
        # Without a named SKU, a job without GPUs takes no machine with GPUs.
        asks_for_gpus = self.task.workers.gpus > 0
        return sku.gpus >= self.task.workers.gpus and (bool(self.task.workers.sku) or asks_for_gpus == (sku.gpus > 0))

    def _markets(self, sku: Sku) -> list[Market]:
        wanted: dict[str, tuple[Market, ...]] = {
            "never": ("on-demand",),
            "prefer": ("spot", "on-demand"),
            "only": ("spot",),
        }
        return [market for market in wanted[self.task.workers.spot] if market in sku.markets]

    def _no_option(self, cluster: Cluster) -> str:
        names = ", ".join(sorted(cluster.sku))
        wanted = ", ".join(self.task.workers.sku) or f"{self.task.workers.gpus} GPUs a worker"
        spot = self.task.workers.spot
        market = "" if spot == "prefer" else f" on {'spot' if spot == 'only' else 'demand'}"
        return f"it has {names}, and none of {wanted}{market}"

    def _price(self, sku: Sku, market: Market, worker: Shape) -> float | None:
        machine = sku.price(market)
        share = sku.share(worker.cpu, worker.memory, worker.gpus)
        return None if machine is None else machine * share * self.task.workers.min

    def _reason(self, cluster: Cluster, where: str, fit: Fit, workers: int, price: float | None) -> str:
        if cluster.kind == "manager":
            text = "its manager places the job"
        elif fit is Fit.AFTER_GROWTH:
            text = f"{workers} workers fit on {where} after it grew"
        else:
            text = f"{workers} of at most {self.task.workers.largest} workers fit on {where} now"
        warm = ", its disks may have the data" if self._is_warm(cluster) else ""
        return f"{text}{warm}{'' if price is None else f', {price:.2f}/h'}"

    def _is_warm(self, cluster: Cluster) -> bool:
        ran = self.history.ran.get(cluster.name)
        return ran is not None and self.now - ran < WARM_S and cluster.cache.mode in _KEPT_CACHES

    def _ranked(self, choices: list[PlacementChoice]) -> list[PlacementChoice]:
        prices = [each.price_per_hour for each in choices if each.price_per_hour]
        cheapest = min(prices, default=1.0)
        clusters = {each.name: each for each in self.view.clusters}
        return sorted(choices, key=lambda each: self._rank(each, clusters[each.cluster], cheapest))

    def _rank(self, choice: PlacementChoice, cluster: Cluster, cheapest: float) -> tuple[object, ...]:
        named = self.task.workers.sku
        price = math.inf if choice.price_per_hour is None else choice.price_per_hour
        tie = hashlib.sha256(f"{self.spec.name} {self.task.name} {choice.cluster}".encode()).hexdigest()
        return (
            self.history.is_avoided((choice.cluster, choice.sku, choice.market), self.now),
            choice.fit,
            named.index(choice.sku) if named else 0,
            not self._is_warm(cluster),
            self.task.workers.spot == "prefer" and choice.market != "spot",
            _price_step(price, cheapest),
            choice.remainder,
            price,
            self.view.capacities[choice.cluster].pending_gpus,
            tie,
            choice.sku,
            choice.market,
        )


def _labels_tell(pool: PoolChoice) -> bool:
    """Whether labels distinguish the heads' nodes from the workers'.

    Then a selector can keep the head off the workers' pool.
    """
    sku = pool.cluster.sku[pool.sku]
    tolerated = sku.tolerated(pool.market)
    return bool(sku.selector(pool.market)) and all(each in tolerated for each in pool.cluster.head_tolerations)


def _price_step(price: float, cheapest: float) -> float:
    """Count whole price steps above the cheapest choice."""
    if not 0 < price < math.inf:
        return price
    # A price of exactly one step counts as that step, whatever the last bit of its logarithm is.
    return math.floor(math.log(price / cheapest, PRICE_STEP) + 1e-9)


def gang_of(spec: JobSpec, task: Task, cluster: Cluster, sku: str, market: Market) -> Gang:
    """Return the smallest gang of a task."""
    workers, machine = task.workers, cluster.sku[sku]
    worker = _shape(workers.cpu, workers.memory or machine.memory, workers.gpus)
    head = _shape(cluster.head_cpu, cluster.head_memory, 0)
    is_shared = spec.scheduling.cluster == "shared"
    return Gang(pool=f"{sku}/{market}", worker=worker, workers=workers.min, head=None if is_shared else head)


def machine_of(sku: Sku) -> Shape:
    """Room of an empty machine of a SKU."""
    return _shape(sku.cpu, sku.memory, sku.gpus)


@functools.lru_cache(maxsize=4096)
def _shape(cpu: str, memory: str, gpus: int) -> Shape:
    # A round asks for the same few shapes for each waiting job and cluster, and a quantity takes microseconds to read.
    return Shape(millicpus(cpu), nbytes(memory), gpus)


def taken(nodes: tuple[NodeGroup, ...], gang: Gang) -> tuple[NodeGroup, ...]:
    """Return the nodes after placing what fits."""
    after = gang.pack(nodes)
    if after is None:
        most = min(gang.most(nodes), gang.workers)
        after = replace(gang, workers=most).pack(nodes) if most else None
    return nodes if after is None else after


def most_when_empty(pool: PoolChoice, capacity: Capacity) -> int:
    """Count workers that a pool could hold when empty.

    Nodes that the autoscaler may add count. Closed nodes do not count.
    """
    nodes = sum(each.count for each in capacity.nodes if pool.gang.pool in each.pools)
    return (nodes + capacity.can_add.get(pool.gang.pool, 0)) * pool.machine.slots(pool.gang.worker)


def too_large(spec: JobSpec, task: Task, view: FleetView, now: float) -> str | None:
    """Return why no empty cluster could hold the gang.

    None if one could. None also while the figures of a cluster that the task may use are not known.
    """
    lacks: list[str] = []
    question = _Question(spec, task, view, PlacementHistory(), now)
    for cluster in view.clusters:
        if cluster.is_allowed(spec.scheduling.clusters, spec.scheduling.deny) is not None:
            continue
        capacity = view.capacities.get(cluster.name)
        if capacity is None or capacity.fault is not None or cluster.kind == "manager":
            return None
        for pool in question.pools(cluster):
            if isinstance(pool, PoolChoice):
                most = most_when_empty(pool, capacity)
                if most >= pool.gang.workers:
                    return None
                lacks.append(f"{cluster.name} {pool.sku} {pool.market} holds {most}")
    if not lacks:
        return None
    return f"{task.workers.min} workers are more than any cluster holds when it is empty: {', '.join(lacks)}"
