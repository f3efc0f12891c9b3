"""Placement: all clusters ranked for one task, each with its reason. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from forebay.deploy.fleet.cluster import Cluster, Market, Sku
from forebay.deploy.placement.capacity import Capacity, Gang, NodeGroup, Shape
from forebay.deploy.spec.job_spec import JobSpec, Task
from forebay.deploy.spec.quantity import millicpus, nbytes

OLDEST_S = 90.0
"""Age above which figures place nothing."""
COOL_DOWN_S = 600.0
"""Time for which a cluster that turned an attempt away is skipped, for machines of that kind."""
WARM_S = 3 * 86_400.0
"""Time for which a cluster that ran the job may still have its blocks."""
_KEPT_CACHES = ("hostPath", "claim")


class Fit(IntEnum):
    """Whether a gang fits, the best first."""

    LARGEST_NOW = 0
    SMALLEST_NOW = 1
    AFTER_GROWTH = 2
    NOT_NOW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Room of an attempt that was placed and whose pods are not in the figures yet."""

    attempt: str
    cluster: str
    gang: Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHistory:
    """Earlier attempts of a job: where they were turned away, and where they ran. Times of the placing clock.

    `turned_away` is by cluster, SKU and market.
    """

    turned_away: Mapping[tuple[str, str, Market], float] = field(default_factory=dict)
    ran: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Facts of a fleet for placement."""

    clusters: tuple[Cluster, ...]
    capacities: Mapping[str, Capacity]
    reservations: tuple[CapacityReservation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """One way to run a task now or after growth: a cluster, a SKU of it, a market, and the workers to start with."""

    cluster: str
    sku: str
    market: Market
    fit: Fit
    workers: int
    gang: Gang
    price_per_hour: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a task cannot run on a cluster now."""

    cluster: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All choices for a task, the best first, and the refusals."""

    choices: tuple[PlacementChoice, ...]
    refusals: tuple[Refusal, ...]

    @property
    def best(self) -> PlacementChoice | None:
        """The choice to take now, or None while nothing has room."""
        return self.choices[0] if self.choices else None


def place(spec: JobSpec, task: Task, view: FleetView, history: PlacementHistory, now: float) -> Placement:
    """Rank the clusters of a fleet for one task of a job.

    The order: whether the largest or the smallest gang fits now or after growth, the order of SKUs in the job file,
    clusters that may have the data on their disks, spot machines where they are preferred, price, GPUs that others wait
    for, and a hash, so that equal clusters share the jobs.
    """
    return _Question(spec, task, view, history, now).answer()


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
            capacity = self.view.capacities.get(cluster.name)
            reason = self._closed(cluster, capacity)
            if reason is not None or capacity is None:
                refusals.append(Refusal(cluster=cluster.name, reason=reason or ""))
                continue
            tried = list(self._tried(cluster, self._left(capacity)))
            found = [each for each in tried if isinstance(each, PlacementChoice)]
            choices += found
            if not found:
                text = "; ".join(dict.fromkeys(str(each) for each in tried)) or self._no_option(cluster)
                refusals.append(Refusal(cluster=cluster.name, reason=text))
        return Placement(
            choices=tuple(sorted(choices, key=self._rank)),
            refusals=tuple(sorted(refusals, key=lambda each: each.cluster)),
        )

    def _closed(self, cluster: Cluster, capacity: Capacity | None) -> str | None:
        """Reason why nothing of the job may go to a cluster, whatever has room there."""
        place = self.spec.place
        reason = cluster.is_allowed(place.clusters, place.deny)
        if reason is not None:
            return reason
        if place.queue is not None and place.queue not in cluster.queues:
            return f"it has no queue {place.queue}"
        if place.priority != "normal" and place.priority not in cluster.priorities:
            return f"it has no priority class {place.priority}"
        if place.cluster == "shared" and cluster.shared_cluster is None:
            return "it has no shared Ray cluster"
        return self._unknown(capacity)

    def _unknown(self, capacity: Capacity | None) -> str | None:
        if capacity is None:
            return "its free room is unknown"
        age = self.now - capacity.observed_at
        return capacity.fault or (f"its figures are {age:.0f} s old" if age > OLDEST_S else None)

    def _tried(self, cluster: Cluster, left: Capacity) -> Iterator[PlacementChoice | str]:
        for sku in self._skus(cluster):
            for market in self._markets(cluster.sku[sku]):
                yield self._try(cluster, left, sku, market)

    def _try(self, cluster: Cluster, left: Capacity, sku: str, market: Market) -> PlacementChoice | str:
        where = f"{sku} {market}"
        away = self.history.turned_away.get((cluster.name, sku, market))
        if away is not None and self.now - away < COOL_DOWN_S:
            return f"{where} turned an attempt away {self.now - away:.0f} s ago"
        gang = gang_of(self.spec, self.task, cluster, sku, market)
        price = self._price(cluster.sku[sku], market, gang.worker)
        limit = self.spec.place.max_price_per_hour
        if limit is not None and (price is None or price > limit):
            shown = "has no known price" if price is None else f"costs {price:.2f}/h, more than {limit:g}"
            return f"{where} {shown}"
        fit, workers = self._fit(cluster, left, gang, cluster.sku[sku])
        if fit is Fit.NOT_NOW:
            free = left.free_slots(gang.pool, gang.worker)
            lack = "for the head beside them" if free >= gang.workers else f"for {free} workers"
            return f"{where} has room {lack} now, and {gang.workers} are needed"
        return PlacementChoice(
            cluster=cluster.name,
            sku=sku,
            market=market,
            fit=fit,
            workers=workers,
            gang=replace(gang, workers=workers),
            price_per_hour=price,
            reason=self._reason(cluster, where, fit, workers, price),
        )

    def _fit(self, cluster: Cluster, left: Capacity, gang: Gang, sku: Sku) -> tuple[Fit, int]:
        least, largest = self.task.workers.min, self.task.workers.largest
        if cluster.kind == "manager":
            return Fit.AFTER_GROWTH, least
        queue = self.spec.place.queue
        if queue is not None and queue in left.queue_gpus and left.queue_gpus[queue] < least * gang.worker.gpus:
            return Fit.NOT_NOW, least
        most = gang.most(left.nodes) if largest > least else largest
        if most >= largest and replace(gang, workers=largest).pack(left.nodes) is not None:
            return Fit.LARGEST_NOW, largest
        if largest > least and most >= least:
            return Fit.SMALLEST_NOW, most
        machine = Shape(millicpus(sku.cpu), nbytes(sku.memory), sku.gpus)
        if gang.pack(left.grown(gang.pool, machine).nodes) is not None:
            return Fit.AFTER_GROWTH, least
        return Fit.NOT_NOW, least

    def _left(self, capacity: Capacity) -> Capacity:
        """Capacity without what is reserved. Of a gang that no longer fits, as many workers as fit are taken."""
        nodes = capacity.nodes
        for each in sorted(self.view.reservations, key=lambda one: one.attempt):
            if each.cluster == capacity.cluster:
                nodes = taken(nodes, each.gang)
        return replace(capacity, nodes=nodes)

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

    def _rank(self, choice: PlacementChoice) -> tuple[float | int | str, ...]:
        cluster = next(each for each in self.view.clusters if each.name == choice.cluster)
        named = self.task.workers.sku
        price = choice.price_per_hour
        tie = hashlib.sha256(f"{self.spec.name} {self.task.name} {choice.cluster}".encode()).hexdigest()
        return (
            choice.fit,
            named.index(choice.sku) if named else 0,
            not self._is_warm(cluster),
            self.task.workers.spot == "prefer" and choice.market != "spot",
            math.inf if price is None else price,
            self.view.capacities[choice.cluster].pending_gpus,
            tie,
            choice.sku,
            choice.market,
        )


def gang_of(spec: JobSpec, task: Task, cluster: Cluster, sku: str, market: Market) -> Gang:
    """Smallest gang of a task on machines of one SKU and market of a cluster."""
    workers, machine = task.workers, cluster.sku[sku]
    worker = Shape(millicpus(workers.cpu), nbytes(workers.memory or machine.memory), workers.gpus)
    head = Shape(millicpus(cluster.head_cpu), nbytes(cluster.head_memory))
    is_shared = spec.place.cluster == "shared"
    return Gang(pool=f"{sku}/{market}", worker=worker, workers=workers.min, head=None if is_shared else head)


def taken(nodes: tuple[NodeGroup, ...], gang: Gang) -> tuple[NodeGroup, ...]:
    """Nodes after a gang, or after as many of its workers as fit."""
    after = gang.pack(nodes)
    if after is None:
        most = min(gang.most(nodes), gang.workers)
        after = replace(gang, workers=most).pack(nodes) if most else None
    return nodes if after is None else after


def too_large(spec: JobSpec, task: Task, clusters: Iterable[Cluster], view: FleetView) -> str | None:
    """Reason why no cluster could hold the smallest gang, even when all of them were empty. None if one could.

    A cluster counts with the nodes it has and may add, each as large as its SKU says.
    """
    lacks: list[str] = []
    for cluster in clusters:
        capacity = view.capacities.get(cluster.name)
        if capacity is None or cluster.kind == "manager":
            return None
        for name, sku in cluster.sku.items():
            machine = Shape(millicpus(sku.cpu), nbytes(sku.memory), sku.gpus)
            for market in sku.markets:
                gang = gang_of(spec, task, cluster, name, market)
                here = sum(each.count for each in capacity.nodes if gang.pool in each.pools)
                slots = (here + capacity.can_add.get(gang.pool, 0)) * machine.slots(gang.worker)
                if slots >= gang.workers:
                    return None
                lacks.append(f"{cluster.name} {name} {market}: {slots} of {gang.workers} workers")
    return f"no cluster is large enough, even when it is empty: {'; '.join(lacks)}"
