"""Facts of a rendered RayJob: what its pods get, and from where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.fleet.cluster import Cluster
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.pod import KubeObject

JOB = "the job file"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFact:
    """One fact of the pods of an attempt.

    `what` names it, `value` shows it, and `by` says where it was decided.
    """

    what: str
    value: str
    by: str


def pod_facts(job: KubeObject, attempt: PlacedAttempt, cluster: Cluster) -> tuple[PodFact, ...]:
    """Return what the pods of a RayJob get, read from the rendered object.

    Nothing for a job on the shared cluster: its pods are there already.
    """
    if "rayClusterSpec" not in job["spec"]:
        return (
            PodFact(
                what="pods", value=f"those of the shared cluster {cluster.shared_cluster}", by=cluster.described_by
            ),
        )
    return tuple(_facts(job, attempt, cluster))


def _facts(job: KubeObject, attempt: PlacedAttempt, cluster: Cluster) -> Iterator[PodFact]:
    spec, by, launch = job["spec"]["rayClusterSpec"], cluster.described_by, attempt.spec.launch
    head, groups = spec["headGroupSpec"]["template"], spec["workerGroupSpecs"]
    worker = groups[0]["template"]
    container = worker["spec"]["containers"][0]

    def fact(what: str, value: str, where: str = by) -> PodFact:
        return PodFact(what=what, value=value or "none", by=where)

    yield fact("image", container["image"], JOB if launch.image else by)
    yield fact("pull secrets", _names(worker["spec"].get("imagePullSecrets", ())))
    own = attempt.submitter
    ours = "" if own is None else f"the submitter {own.name} of the fleet file"
    yield fact("account", worker["spec"].get("serviceAccountName", ""), ours if own and own.service_account else by)
    yield fact(
        "resources of a worker", _pairs(container["resources"]["requests"]), f"{JOB}, and SKU {attempt.sku} of {by}"
    )
    for group in groups:
        pods, market = group["template"]["spec"], group["groupName"]
        yield fact(f"node selector, {market}", _pairs(pods.get("nodeSelector", {})))
        yield fact(f"tolerations, {market}", _tolerations(pods))
        yield fact(f"time to leave, {market}", f"{pods['terminationGracePeriodSeconds']} s")
    yield fact("head", _pairs(head["spec"]["containers"][0]["resources"]["requests"]))
    yield fact("node selector, head", _pairs(head["spec"].get("nodeSelector", {})))
    yield fact("tolerations, head", _tolerations(head["spec"]))
    yield fact("cache", _cache(worker["spec"], cluster))
    yield fact("HDFS", _hdfs(cluster))
    given, secrets = (by, cluster.secret_env) if own is None or own.secret_env is None else (ours, own.secret_env)
    for name, where in sorted({**secrets, **launch.secret_env}.items()):
        yield fact(f"variable {name}", f"Secret {where}", JOB if name in launch.secret_env else given)
    for mount in launch.mounts:
        yield fact(f"mount {mount.path}", mount.secret or mount.config_map or mount.claim or "", JOB)
    yield from (fact(*each) for each in _patches(attempt, cluster))
    if cluster.scheduler != "default":
        yield fact("queued by", f"{cluster.scheduler}, queue {_queue(job)}")


def _hdfs(cluster: Cluster) -> str:
    if cluster.hdfs is None:
        return ""
    return f"{cluster.hdfs.config_map}{f', Kerberos as {cluster.hdfs.principal}' if cluster.hdfs.principal else ''}"


def _patches(attempt: PlacedAttempt, cluster: Cluster) -> Iterator[tuple[str, str]]:
    for what, patch in (
        ("podTemplate", cluster.pod_template),
        ("head.podTemplate", cluster.head_pod_template),
        (f"skus.{attempt.sku}.podTemplate", cluster.sku[attempt.sku].pod_template),
    ):
        if patch:
            yield f"patched by {what}", ", ".join(_leaves(patch))


def _queue(job: KubeObject) -> str:
    labels: Mapping[str, str] = job["metadata"]["labels"]
    return next((labels[name] for name in labels if name.endswith("queue-name")), "none")


def _names(found: Any) -> str:
    return ", ".join(each["name"] for each in found)


def _pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in found.items())


def _tolerations(spec: Mapping[str, Any]) -> str:
    def shown(each: Mapping[str, Any]) -> str:
        value = f"={each['value']}" if each.get("value") else ""
        return f"{each.get('key', 'every taint')}{value}{':' + each['effect'] if each.get('effect') else ''}"

    return ", ".join(shown(each) for each in spec.get("tolerations", ()))


def _cache(spec: Mapping[str, Any], cluster: Cluster) -> str:
    found = next((each for each in spec["volumes"] if each["name"] == "cache"), None)
    if found is None:
        return ""
    where = found.get("hostPath", {}).get("path")
    kind = f"hostPath {where}" if where else cluster.cache.mode
    return f"{kind}, {cluster.cache.size} at {cluster.cache.path}"


def _leaves(patch: Any, at: str = "") -> Iterator[str]:
    """Yield the paths that a patch sets, without their values."""
    if isinstance(patch, Mapping) and patch:
        for name, value in patch.items():
            yield from _leaves(value, f"{at}.{name}" if at else str(name))
    elif isinstance(patch, list | tuple) and any(isinstance(each, Mapping) for each in patch):
        for number, each in enumerate(patch):
            label = each.get("name", number) if isinstance(each, Mapping) else number
            yield from _leaves({k: v for k, v in each.items() if k != "name"} or label, f"{at}[{label}]")
    else:
        yield at
