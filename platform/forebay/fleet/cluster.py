"""A cluster of the fleet: access, machines and prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import ConfigDict

from forebay.fleet.spec.fields import Bytes, Count, Cpus, Duration, Price, Words, fault, settle_fields
from forebay.fleet.spec.names import check_dns_label
from forebay.fleet.spec.quantity import millicpus, nbytes

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)
Market = Literal["spot", "on-demand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A kind of machine.

    `cpu`, `memory` and `gpus` are what one of them offers to pods.
    """

    __pydantic_config__ = _STRICT

    cpu: Cpus
    """CPUs of a machine that pods can have."""
    memory: Bytes
    """Memory of a machine that pods can have."""
    gpus: Count = 0
    """GPUs of a machine."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the GPU resource."""
    accelerator: str | None = None
    """Value of the label `ray.io/accelerator-type`. By default the name of the SKU."""
    most_nodes: Count = 0
    """Machines of this kind that the cluster may have, or 0 if the cluster does not grow."""
    price_per_hour: Price | None = None
    """Price of a machine for an hour."""
    spot_price_per_hour: Price | None = None
    """Price of a machine that can be taken away, for an hour."""
    markets: tuple[Market, ...] = ("on-demand",)
    """Markets on which the machine can be had."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of its nodes."""
    spot_node_selector: Mapping[str, str] = field(default_factory=dict)
    """Further labels of its nodes that can be taken away."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints of its nodes that workers tolerate."""
    spot_tolerations: tuple[Mapping[str, Any], ...] = ()
    """Further taints of its nodes that can be taken away."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if not self.markets:
            raise fault('a SKU has at least one market. Write markets = ["on-demand"].', "markets")

    def selector(self, market: Market) -> dict[str, str]:
        """Labels of its nodes of a market."""
        return {**self.node_selector, **(self.spot_node_selector if market == "spot" else {})}

    def price(self, market: Market) -> float | None:
        """Return the price of a machine for an hour.

        A machine without a spot price costs the same on both markets.
        """
        return (self.spot_price_per_hour or self.price_per_hour) if market == "spot" else self.price_per_hour

    def share(self, cpu: int, memory: int, gpus: int) -> float:
        """Return the share of a machine that a pod takes.

        The scarcest of `cpu` (thousandths), `memory` (bytes) and `gpus` decides.
        """
        parts = [Decimal(cpu) / millicpus(self.cpu), Decimal(memory) / nbytes(self.memory)]
        return float(max(*parts, Decimal(gpus) / self.gpus if self.gpus else Decimal(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheVolume:
    """Path of the block cache in each worker pod."""

    __pydantic_config__ = _STRICT

    mode: Literal["emptyDir", "hostPath", "claim", "none"] = "emptyDir"
    """Kind of volume."""
    path: str = "/cache"
    """Path in the container, and with `hostPath` on the node, where `<path>/<namespace>` must exist."""
    size: Bytes = "100Gi"
    """Size of the volume. The cache uses 90 % of it, because a pod above its limit is ended."""
    storage_class: str | None = None
    """Storage class of the claims."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if not self.path.startswith("/") or self.path == "/":
            raise fault(f"{self.path!r} is not an absolute path of a folder. Write for example /cache.", "path")
        if self.mode == "claim" and self.storage_class is None:
            raise fault("a claim needs a storage class. Give storage_class.", "storage_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdfs:
    """Hadoop's configuration, and Kerberos by keytab."""

    __pydantic_config__ = _STRICT

    config_map: str
    """ConfigMap with core-site.xml and hdfs-site.xml."""
    keytab_secret: str | None = None
    """Secret with a key `keytab`. Without it, Kerberos is not used."""
    principal: str | None = None
    """Principal of the keytab."""
    renew_every: Duration = 14_400.0
    """Time between two calls of kinit."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if (self.keytab_secret is None) != (self.principal is None):
            raise fault("Kerberos needs both keytab_secret and principal.", "principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One namespace of one Kubernetes cluster."""

    __pydantic_config__ = _STRICT

    name: str
    """Name of the cluster in job files and tables."""
    context: str | None = None
    """Context of the kubeconfig. By default the cluster that Forebay runs in."""
    server: str | None = None
    """Address of the API server, to tell clusters apart. The context sets the default."""
    namespace: str = "default"
    """Namespace of the jobs."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels for `scheduling.clusters`."""
    kind: Literal["cluster", "manager"] = "cluster"
    """`manager` is the API server of MultiKueue or Karmada: it places the jobs itself."""
    scheduler: Literal["default", "kueue", "volcano"] = "default"
    """Engine of quotas and gangs in the cluster."""
    queues: Words = ()
    """Queues that jobs may name."""
    priorities: Words = ()
    """Priority classes that jobs may name."""
    sku: Mapping[str, Sku]
    """Its machines, by the names that job files use."""
    image: str
    """Image of the containers, with its digest."""
    ray_version: str = "2.60.0"
    """Version of Ray in the image."""
    shared_cluster: str | None = None
    """RayCluster of the chart, for jobs with `cluster = "shared"`."""
    service_account: str | None = None
    """Account of the pods, for access to storage by workload identity."""
    pull_secrets: Words = ()
    """Secrets with which the image is pulled."""
    head_cpu: Cpus = "4"
    """CPUs of the head pod."""
    head_memory: Bytes = "16Gi"
    """Memory of the head pod."""
    head_node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of nodes for head pods, which must not be taken away."""
    head_tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints that head pods tolerate."""
    drain: Duration = 40.0
    """Time in which a worker that is taken away leaves its run."""
    spot_drain: Duration = 12.0
    """The same for spot machines."""
    cache: CacheVolume = field(default_factory=CacheVolume)
    """Path of the block cache."""
    hdfs: Hdfs | None = None
    """Hadoop's configuration."""
    secret_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables from Secrets of the namespace, for access to storage."""
    native_sidecars: bool = True
    """Whether its Kubernetes is 1.29 or newer. An older one waits forever for an init container that does not end."""

    def __post_init__(self) -> None:
        settle_fields(self)
        check_dns_label("name", self.name, most=63)
        check_dns_label("namespace", self.namespace, most=63)
        if not self.sku:
            raise fault("a cluster has at least one SKU. Write [cluster.sku.NAME].", "sku")
        if self.kind == "manager" and self.scheduler == "volcano":
            raise fault('a manager queues jobs by Kueue. Write scheduler = "kueue".', "scheduler")

    @property
    def identity(self) -> tuple[str, str]:
        """Server and namespace, which identify a cluster."""
        return (self.server or f"context {self.context or '(in the cluster)'}", self.namespace)

    def is_allowed(self, clusters: tuple[str, ...] | Mapping[str, str], deny: tuple[str, ...]) -> str | None:
        """Reason why a job may not use the cluster, or None."""
        if any(fnmatchcase(self.name, pattern) for pattern in deny):
            return "denied by scheduling.deny"
        if isinstance(clusters, Mapping):
            missing = {name: value for name, value in clusters.items() if self.labels.get(name) != value}
            return f"no label {', '.join(f'{n}={v}' for n, v in missing.items())}" if missing else None
        allowed = any(pattern == "any" or fnmatchcase(self.name, pattern) for pattern in clusters)
        return None if allowed else "not in scheduling.clusters"
