"""A cluster of the fleet: access, machines and prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, Literal

from pydantic import ConfigDict

from forebay.errors import InvalidOption
from forebay.fleet.pod_template import check_pod_template
from forebay.fleet.spec.fields import Bytes, Count, Cpus, Duration, EnvValue, Price, Words, fault, settle_fields
from forebay.fleet.spec.names import check_dns_label, check_env_name, check_object_name
from forebay.fleet.spec.quantity import millicpus, nbytes, quantity

VISIBLE_GPUS = "NVIDIA_VISIBLE_DEVICES"
"""Variable by which NVIDIA's runtime gives a container GPUs. Images of CUDA set it to `all`."""
_DEVICE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_HUGE_PAGES = re.compile(r"hugepages-(\d+[KMG]i)")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
_SKU_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")
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
    on_demand_node_selector: Mapping[str, str] = field(default_factory=dict)
    """Further labels of its nodes that stay."""
    spot_node_selector: Mapping[str, str] = field(default_factory=dict)
    """Further labels of its nodes that can be taken away."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints of its nodes that workers tolerate."""
    on_demand_tolerations: tuple[Mapping[str, Any], ...] = ()
    """Further taints of its nodes that stay."""
    spot_tolerations: tuple[Mapping[str, Any], ...] = ()
    """Further taints of its nodes that can be taken away."""
    resources: Mapping[str, EnvValue] = field(default_factory=dict)
    """Devices and huge pages of a machine, such as devices of a fast network. A worker gets its share."""
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    """Patch of the pods of its workers."""

    def __post_init__(self) -> None:
        settle_fields(self)
        for name in ("gpus", "most_nodes"):
            if (found := getattr(self, name)) < 0:
                raise fault(f"{found} cannot work. Give a whole number from 0.", name)
        if not self.markets:
            raise fault("a SKU has at least one market. Enable markets.onDemand or markets.spot.", "markets")
        for name, value in self.resources.items():
            self._check_resource(name, value)
        for table in ("tolerations", "on_demand_tolerations", "spot_tolerations"):
            _check_tolerations(table, getattr(self, table))
        check_pod_template(self.pod_template, "pod_template")

    def _check_resource(self, name: str, value: str) -> None:
        if name == self.gpu_resource or name in ("cpu", "memory", "ephemeral-storage"):
            raise fault("this resource has its own key: cpu, memory, gpus or cache.sizeLimit.", "resources", name)
        is_pages = _HUGE_PAGES.fullmatch(name)
        if not is_pages and not _DEVICE.fullmatch(name):
            raise fault("it is no device, as vpc.amazonaws.com/efa, and no hugepages-SIZE.", "resources", name)
        try:
            amount = quantity(value)
        except InvalidOption as error:
            raise fault(str(error), "resources", name) from None
        if not 0 < amount < 2**63 or amount % 1 or (is_pages and amount % nbytes(is_pages[1])):
            raise fault(f"{value!r} is not a whole number of {'pages' if is_pages else 'devices'}.", "resources", name)

    def selector(self, market: Market) -> dict[str, str]:
        """Labels of its nodes of a market."""
        return {**self.node_selector, **(self.spot_node_selector if market == "spot" else self.on_demand_node_selector)}

    def tolerated(self, market: Market) -> tuple[Mapping[str, Any], ...]:
        """Taints of its nodes of a market."""
        return (*self.tolerations, *(self.spot_tolerations if market == "spot" else self.on_demand_tolerations))

    def resources_of(self, cpu: int, gpus: int) -> dict[str, str]:
        """Return a worker's share of the devices and huge pages.

        It is the worker's share of the GPUs, or of the CPUs (thousandths) on a machine without GPUs, rounded down. A
        device of which less than one is left is not asked for.
        """
        share = Fraction(gpus, self.gpus) if self.gpus else min(Fraction(cpu, millicpus(self.cpu)), Fraction(1))
        found: dict[str, str] = {}
        for name, value in self.resources.items():
            pages = _HUGE_PAGES.fullmatch(name)
            unit = nbytes(pages[1]) if pages else 1
            amount = int(int(quantity(value)) * share) // unit * unit
            if amount:
                found[name] = str(amount)
        return found

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

    mode: Literal["emptyDir", "hostPath", "ephemeralClaim", "none"] = "emptyDir"
    """Kind of volume. An `ephemeralClaim` is deleted with its pod."""
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
        if self.mode == "ephemeralClaim" and self.storage_class is None:
            raise fault("a claim needs a storage class. Give storageClass.", "storage_class")


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
        _check_object("config_map", self.config_map)
        if self.keytab_secret is not None:
            _check_object("keytab_secret", self.keytab_secret)
        if (self.keytab_secret is None) != (self.principal is None):
            raise fault("Kerberos needs both keytabSecret and principal.", "principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One namespace of one Kubernetes cluster.

    Without `sku` it is not described yet: its catalogue was not read.
    """

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
    described_by: str = "the fleet file"
    """Where the fields below come from."""
    sku: Mapping[str, Sku] = field(default_factory=dict)
    """Its machines, by the names that job files use."""
    image: str = ""
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
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    """Patch of the pods of heads, workers and submitters."""
    head_pod_template: Mapping[str, Any] = field(default_factory=dict)
    """Patch of the pods of heads."""

    def __post_init__(self) -> None:
        settle_fields(self)
        check_dns_label("name", self.name, most=63)
        check_object_name("namespace", self.namespace, is_namespace=True)
        if self.sku and not _IMAGE.fullmatch(self.image):
            raise fault(f"{self.image!r} is not an image. Write REPOSITORY@sha256:...", "image")
        for name in self.sku:
            if not _SKU_NAME.fullmatch(name):
                raise fault("a SKU has at most 30 lower case letters, digits and dashes.", "sku", name)
        if self.service_account is not None:
            _check_object("service_account", self.service_account)
        for each in self.pull_secrets:
            _check_object("pull_secrets", each)
        for name, where in self.secret_env.items():
            check_env_name(name, "secret_env")
            secret, slash, key = where.partition("/")
            if not slash or not _OBJECT.fullmatch(secret) or not _KEY.fullmatch(key):
                raise fault("it names no key of a Secret. Write SECRET/KEY.", "secret_env", name)
        _check_tolerations("head_tolerations", self.head_tolerations)
        check_pod_template(self.pod_template, "pod_template")
        check_pod_template(self.head_pod_template, "head_pod_template")
        if self.kind == "manager" and self.scheduler == "volcano":
            raise fault('a manager queues jobs by Kueue. Write scheduler = "kueue".', "scheduler")

    @property
    def spot_selectors(self) -> tuple[Mapping[str, str], ...]:
        """Labels of nodes that can be taken away, of all SKUs."""
        found = [sku.selector("spot") for sku in self.sku.values() if sku.spot_node_selector]
        return tuple(each for number, each in enumerate(found) if each not in found[:number])

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


def _check_tolerations(field_name: str, found: tuple[Mapping[str, Any], ...]) -> None:
    for number, each in enumerate(found):
        for name in each:
            if name not in _TOLERATION:
                raise fault(f"a toleration has {', '.join(_TOLERATION)}.", field_name, number, name)


def _check_object(field_name: str, name: str) -> None:
    if not _OBJECT.fullmatch(name):
        raise fault(f"{name!r} cannot name an object of Kubernetes.", field_name)
