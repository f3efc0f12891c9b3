"""Survey of a fleet: capacity, and missing references."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.capacity_agent import CAPACITY
from forebay.fleet.cluster import Cluster, Market
from forebay.fleet.federation.kube_clusters import MOST_THREADS, KubeClusters, api_of
from forebay.fleet.federation.ports import ClusterView
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.kube.api import KubeApi
from forebay.fleet.kube.api_errors import KubeError
from forebay.fleet.placement.capacity import Capacity
from forebay.fleet.placement.place import FleetView, too_large
from forebay.fleet.spec.job_spec import JobSpec
from forebay.fleet.spec.quantity import millicpus

ConnectCluster = Callable[[Cluster], KubeApi]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """Nodes of one SKU and market of a cluster.

    `free` and `total` are GPUs, or CPUs of a SKU without GPUs.
    """

    sku: str
    market: Market
    nodes: int
    free: int
    total: int
    can_add: int
    price_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """One cluster of a fleet at one time.

    `fault` says why nothing can be placed there, None if it can. `age_s` is the age of its agent's figures by its own
    clock, None for a cluster that was counted for this row.
    """

    cluster: str
    fault: str | None
    age_s: float | None
    running: int
    starting: int
    pending_gpus: int
    pools: tuple[PoolRow, ...]


def survey(fleet: Fleet, connect: ConnectCluster | None = None) -> tuple[ClusterView, ...]:
    """Return views of all clusters, in their order.

    A cluster without an answer has a fault, and delays no other one.
    """
    found = KubeClusters(fleet, connect).look_all(0.0)
    return tuple(found[each.name] for each in fleet.cluster)


def as_seen(fleet: Fleet, views: tuple[ClusterView, ...]) -> Fleet:
    """Return the fleet as its clusters were described when they were seen."""
    return replace(fleet, cluster=tuple(view.cluster or each for each, view in zip(fleet.cluster, views, strict=True)))


def described_fleet(fleet: Fleet, connect: ConnectCluster | None = None) -> tuple[Fleet, dict[str, Capacity]]:
    """Return the fleet with the catalogues of its clusters.

    A cluster whose catalogue cannot be read has a capacity with the fault. No request is sent for clusters that the
    fleet file describes. Raises `InvalidOption` if no cluster is described.
    """
    clusters = KubeClusters(fleet, connect)
    faults = clusters.describe_all()
    if len(faults) == len(fleet.cluster):
        raise InvalidOption("\n".join(f"{name}: {fault}" for name, fault in faults.items()))
    return clusters.fleet(), {
        name: Capacity(cluster=name, observed_at=0.0, fault=fault) for name, fault in faults.items()
    }


def rows(fleet: Fleet, views: tuple[ClusterView, ...], connect: ConnectCluster | None = None) -> Iterator[ClusterRow]:
    """Rows of a table of the fleet."""
    with ThreadPoolExecutor(MOST_THREADS) as pool:
        ages = list(
            pool.map(
                lambda pair: None if pair[1].capacity.fault else _age_s((connect or api_of)(pair[0]), pair[0]),
                zip(fleet.cluster, views, strict=True),
            )
        )
    for cluster, view, age_s in zip(fleet.cluster, views, ages, strict=True):
        phases = [each.phase for each in (view.ray_jobs or {}).values()]
        yield ClusterRow(
            cluster=cluster.name,
            fault=view.capacity.fault,
            age_s=age_s,
            running=phases.count("running"),
            starting=phases.count("starting"),
            pending_gpus=view.capacity.pending_gpus,
            pools=() if view.capacity.fault else tuple(_pools(cluster, view.capacity)),
        )


def figures_for(
    spec: JobSpec, fleet: Fleet, views: tuple[ClusterView, ...], connect: ConnectCluster | None = None
) -> Mapping[str, Capacity]:
    """Return the capacities for a job.

    A cluster that lacks a Secret or ConfigMap of the job has a fault that names it.
    """

    def with_references(pair: tuple[Cluster, ClusterView]) -> Capacity:
        cluster, view = pair
        if view.capacity.fault is not None:
            return view.capacity
        missing = missing_references(spec, cluster, (connect or api_of)(cluster))
        return replace(view.capacity, fault=f"it lacks {', '.join(missing)}") if missing else view.capacity

    with ThreadPoolExecutor(MOST_THREADS) as pool:
        found = pool.map(with_references, zip(fleet.cluster, views, strict=True))
        return {each.cluster: each for each in found}


def missing_references(spec: JobSpec, cluster: Cluster, api: KubeApi) -> tuple[str, ...]:
    """Return Secrets and ConfigMaps that a job lacks.

    One that may not be read counts as there: its pods tell. No content of a Secret is read.
    """
    secrets = {text.split("/")[0] for text in (*spec.launch.secret_env.values(), *cluster.secret_env.values())}
    secrets |= {each.secret for each in spec.launch.mounts if each.secret} | set(cluster.pull_secrets)
    maps = {each.config_map for each in spec.launch.mounts if each.config_map}
    if cluster.hdfs is not None:
        maps.add(cluster.hdfs.config_map)
        secrets |= {cluster.hdfs.keytab_secret} if cluster.hdfs.keytab_secret else set()
    wanted = [("Secret", "secrets", name) for name in sorted(secrets)]
    wanted += [("ConfigMap", "configmaps", name) for name in sorted(maps)]
    missing = []
    for what, kind, name in wanted:
        try:
            is_there = api.exists(f"/api/v1/namespaces/{cluster.namespace}/{kind}/{name}")
        except KubeError:
            continue
        if not is_there:
            missing.append(f"{what} {name} in namespace {cluster.namespace}")
    return tuple(missing)


def require_room(spec: JobSpec, fleet: Fleet, capacities: Mapping[str, Capacity]) -> None:
    """Raise `InvalidJobSpec` if no empty cluster could start it."""
    fleet.check(spec)
    allowed = [
        each for each in fleet.cluster if each.is_allowed(spec.scheduling.clusters, spec.scheduling.deny) is None
    ]
    lacks = [capacities[each.name].fault or "" for each in allowed]
    if all(each.startswith("it lacks") for each in lacks):
        shown = "; ".join(f"{each.name}: {lack}" for each, lack in zip(allowed, lacks, strict=True))
        raise InvalidJobSpec(f"{spec.name} cannot start on any cluster ({shown}). Create what is missing.")
    view = FleetView(clusters=fleet.cluster, capacities=capacities)
    for task in spec.task:
        reason = too_large(spec, task, view, 0.0)
        if reason is not None:
            raise InvalidJobSpec(f"task {task.name} of {spec.name}: {reason}. Lower workers.min, or add machines.")


def _age_s(api: KubeApi, cluster: Cluster) -> float | None:
    """Return the age of the agent's figures.

    Both times are of the cluster's API server.
    """
    try:
        found = api.get(f"/api/v1/namespaces/{cluster.namespace}/configmaps/{CAPACITY}")
        times = [each["time"] for each in found["metadata"].get("managedFields") or () if "time" in each]
        return max(0.0, api.clock() - datetime.fromisoformat(max(times)).timestamp()) if times else None
    except KubeError:
        return None


def _pools(cluster: Cluster, capacity: Capacity) -> Iterator[PoolRow]:
    for name, sku in cluster.sku.items():
        for market in sku.markets:
            pool = f"{name}/{market}"
            groups = [each for each in capacity.nodes if pool in each.pools]
            nodes = sum(each.count for each in groups)
            free = sum(each.count * (each.free.gpus if sku.gpus else each.free.cpu // 1000) for each in groups)
            size = sku.gpus or millicpus(sku.cpu) // 1000
            yield PoolRow(
                sku=name,
                market=market,
                nodes=nodes,
                free=free,
                total=nodes * size,
                can_add=capacity.can_add.get(pool, 0),
                price_per_hour=sku.price(market),
            )
