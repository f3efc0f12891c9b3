"""RayJob of an attempt, rendered by a pure function.

ADR 0041 has the reasons.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from forebay.fleet.cluster import Cluster, Market
from forebay.fleet.pod_template import patched
from forebay.fleet.rayjob.attempt import CODE_FOLDER, DOMAIN, PlacedAttempt, escaped
from forebay.fleet.rayjob.pod import (
    GRACE_AFTER_DRAIN_S,
    NO_GPUS,
    KubeObject,
    container_security,
    pod_security,
    pod_spec,
    ray_container,
    with_gpus_hidden,
)
from forebay.fleet.spec.job_spec import check_shared
from forebay.fleet.spec.quantity import millicpus, nbytes

CLUSTER_TTL_S = 0
"""Time that KubeRay keeps the pods of a RayJob after its end. The RayJob and the log of its submitter stay."""
IDLE_S = 60
ALLOCATE_S = 300
"""Time after which a machine that does not come is looked for in the next group. Ray's default is an hour."""
START_GRACE_S = 60
SUBMITTER = "ray-job-submitter"
"""Container that submits the entrypoint, and prints what it writes."""
SUBMITTER_LABEL = f"{DOMAIN}/submitter"
"""Label of pods that the chart's NetworkPolicy lets reach the dashboard."""
KEPT_PODS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of pods whose loss ends the attempt: no node is emptied of them.

The chart's PodDisruptionBudget says it of heads to everybody else who evicts.
"""
_PRIORITY_OF_MARKET: dict[Market, int] = {"spot": 10, "on-demand": 0}


def render(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    """Return the RayJob of `attempt` on `cluster`, as JSON.

    Raises `InvalidJobSpec` for what a shared cluster cannot give.
    """
    check_shared(attempt.spec)
    scheduling = attempt.spec.scheduling
    spec: KubeObject = {
        "entrypoint": attempt.entrypoint,
        # Retries are attempts of their own: they may run elsewhere, and each has its number in storage.
        "backoffLimit": 0,
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": _submitter(attempt, cluster),
        "preRunningDeadlineSeconds": int(scheduling.start_within) + START_GRACE_S,
    }
    if scheduling.finish_within is not None:
        spec["activeDeadlineSeconds"] = int(scheduling.finish_within)
    if scheduling.cluster == "shared":
        spec |= _on_shared(attempt, cluster)
    else:
        spec |= {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": CLUSTER_TTL_S}
        spec["rayClusterSpec"] = ray_cluster_spec(attempt, cluster)
        if cluster.scheduler == "kueue":
            spec["suspend"] = True
    if cluster.kind == "manager" and cluster.scheduler == "kueue":
        spec["managedBy"] = "kueue.x-k8s.io/multikueue"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": attempt.name,
            "namespace": cluster.namespace,
            "labels": {**attempt.spec.launch.labels, **attempt.labels, **_queue_labels(attempt, cluster)},
            "annotations": attempt.annotations,
        },
        "spec": spec,
    }


def ray_cluster_spec(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    """Return the Ray cluster of one attempt.

    It has a head that trains nothing, and one group of workers for each market.
    """
    sku, workers = cluster.sku[attempt.sku], attempt.task.workers
    spec: KubeObject = {
        "rayVersion": cluster.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head(attempt, cluster),
    }
    markets = attempt.markets_on(sku)
    # Kueue counts the pods of a job once, so that its number cannot change.
    is_elastic = (workers.largest > workers.min or len(markets) > 1) and cluster.scheduler != "kueue"
    if is_elastic:
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _autoscaler()}
    else:
        markets = markets[:1]
    spec["workerGroupSpecs"] = [
        _group(attempt, cluster, market, is_first=number == 0, is_elastic=is_elastic)
        for number, market in enumerate(markets)
    ]
    return spec


def worker_resources(attempt: PlacedAttempt, cluster: Cluster) -> dict[str, str]:
    """Resources that a worker pod requests."""
    workers, sku = attempt.task.workers, cluster.sku[attempt.sku]
    resources = {"cpu": workers.cpu, "memory": workers.memory or sku.memory}
    if workers.gpus:
        resources[sku.gpu_resource] = str(workers.gpus)
    resources |= sku.resources_of(millicpus(workers.cpu), workers.gpus)
    local = nbytes(workers.ephemeral) if workers.ephemeral else 0
    if cluster.cache.mode == "emptyDir":
        local += nbytes(cluster.cache.size)
    return resources | ({"ephemeral-storage": str(local)} if local else {})


def _head(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    resources = {"cpu": cluster.head_cpu, "memory": cluster.head_memory}
    container = ray_container(attempt, cluster, resources, has_cache=False)
    spec = pod_spec(attempt, cluster, container, has_cache=False)
    spec |= _nodes(cluster.head_node_selector, cluster.head_tolerations) | _priority(attempt, cluster)
    selector = cluster.sku[attempt.sku].selector(attempt.market)
    spec |= _nodes_without((*cluster.spot_selectors, *([selector] if attempt.is_head_apart and selector else [])))
    template = _patched(
        {"metadata": {**_template_metadata(attempt), "annotations": KEPT_PODS}, "spec": spec},
        attempt,
        (cluster.pod_template, cluster.head_pod_template),
    )
    return {
        # Nothing of a run is placed on the head: it is the pod whose loss ends the attempt.
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - inside the pod's network
        "template": template,
    }


def _group(attempt: PlacedAttempt, cluster: Cluster, market: Market, *, is_first: bool, is_elastic: bool) -> KubeObject:
    sku = cluster.sku[attempt.sku]
    replicas = attempt.world_size if is_first else 0
    is_spot = market == "spot"
    container = ray_container(attempt, cluster, worker_resources(attempt, cluster), has_cache=True)
    spec = pod_spec(attempt, cluster, container, has_cache=True)
    spec |= {"automountServiceAccountToken": False, **_priority(attempt, cluster)}
    drain_s = cluster.spot_drain if is_spot else cluster.drain
    spec["terminationGracePeriodSeconds"] = int(drain_s) + (3 if is_spot else GRACE_AFTER_DRAIN_S)
    spec |= _nodes(sku.selector(market), sku.tolerated(market))
    if not is_spot:
        spec |= _nodes_without(cluster.spot_selectors)
    group: KubeObject = {
        "groupName": market,
        "replicas": replicas,
        "minReplicas": 0 if is_elastic else replicas,
        "maxReplicas": attempt.task.workers.largest if is_elastic else replicas,
        "rayStartParams": {},
        "labels": {"ray.io/market-type": market, "ray.io/accelerator-type": sku.accelerator or attempt.sku},
        "template": _patched(
            {"metadata": _template_metadata(attempt), "spec": spec},
            attempt,
            (cluster.pod_template, sku.pod_template),
            sku.gpu_resource,
        ),
    }
    if is_elastic:
        group |= {"priority": _PRIORITY_OF_MARKET[market], "idleTimeoutSeconds": IDLE_S}
    return group


def _priority(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    """Return the priority class of pods.

    It is empty where an engine of the cluster reads it from a label.
    """
    name = attempt.spec.scheduling.priority
    return {} if name == "normal" or cluster.scheduler != "default" else {"priorityClassName": name}


def _nodes(selector: Any, tolerations: Any) -> KubeObject:
    return {
        **({"nodeSelector": dict(selector)} if selector else {}),
        **({"tolerations": [dict(each) for each in tolerations]} if tolerations else {}),
    }


def _nodes_without(selectors: Sequence[Mapping[str, str]]) -> KubeObject:
    """Return the affinity to nodes that fit none of `selectors`.

    Of each, at least one label has another value or is missing. Terms are joined by "or", and their expressions by
    "and".
    """
    if not selectors:
        return {}
    terms = [
        {"matchExpressions": [{"key": name, "operator": "NotIn", "values": [value]} for name, value in each]}
        for each in dict.fromkeys(tuple(dict.fromkeys(each)) for each in product(*(one.items() for one in selectors)))
    ]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": rule}}


def _patched(
    template: KubeObject, attempt: PlacedAttempt, patches: Sequence[Mapping[str, Any]], gpu_resource: str = ""
) -> KubeObject:
    """Return a pod template with the patches of its cluster. Variables of the job stay."""
    launch = attempt.spec.launch
    for patch in patches:
        template = patched(template, patch, {**launch.env, **launch.secret_env})
    return with_gpus_hidden(template, gpu_resource)


def _template_metadata(attempt: PlacedAttempt) -> KubeObject:
    return {"labels": {**attempt.spec.launch.labels, **attempt.labels}}


def _autoscaler() -> KubeObject:
    return {
        "version": "v2",
        "upscalingMode": "Default",
        "idleTimeoutSeconds": IDLE_S,
        "env": [{"name": "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S", "value": str(ALLOCATE_S)}, NO_GPUS],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": container_security(),
    }


def _on_shared(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    """Return the part for a shared Ray cluster.

    KubeRay neither deletes nor suspends it for a job.
    """
    environment = {"env_vars": attempt.environment_in(cluster) | dict(attempt.spec.launch.env)}
    words = attempt.words
    if attempt.code:
        # Pods of the shared cluster have the code of many jobs.
        words = (*attempt.fetch_code[:-1], f"{CODE_FOLDER}/{attempt.code}", "--", *words)
    return {
        "clusterSelector": {"ray.io/cluster": cluster.shared_cluster},
        "shutdownAfterJobFinishes": False,
        "entrypoint": escaped(shlex.join(words)),
        "runtimeEnvYAML": escaped(json.dumps(environment)),
    }


def _submitter(attempt: PlacedAttempt, cluster: Cluster) -> KubeObject:
    """Return the pod that submits the entrypoint.

    KubeRay's own one is refused under the Pod Security level `restricted`.
    """
    container: KubeObject = {
        "name": SUBMITTER,
        "image": attempt.spec.launch.image or cluster.image,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": container_security(),
    }
    spec: KubeObject = {
        "restartPolicy": "Never",
        "containers": [container],
        "securityContext": pod_security(),
        "automountServiceAccountToken": False,
        **_nodes(cluster.head_node_selector, cluster.head_tolerations),
    }
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    spec |= _nodes_without(cluster.spot_selectors)
    metadata = {"labels": _template_metadata(attempt)["labels"] | {SUBMITTER_LABEL: "true"}, "annotations": KEPT_PODS}
    return _patched({"metadata": metadata, "spec": spec}, attempt, (cluster.pod_template,))


def _queue_labels(attempt: PlacedAttempt, cluster: Cluster) -> dict[str, str]:
    scheduling = attempt.spec.scheduling
    labels: dict[str, str] = {}
    if scheduling.cluster == "shared" and scheduling.queue is None and cluster.scheduler == "kueue":
        return labels  # the nodes are there: Kueue takes no job of theirs
    if cluster.scheduler == "kueue":
        labels |= (
            {"kueue.x-k8s.io/queue-name": scheduling.queue or cluster.queues[0]}
            if scheduling.queue or cluster.queues
            else {}
        )
        labels |= {"kueue.x-k8s.io/priority-class": scheduling.priority} if scheduling.priority != "normal" else {}
    elif cluster.scheduler == "volcano":
        labels |= {"ray.io/scheduler-name": "volcano", "ray.io/gang-scheduling-enabled": "true"}
        labels |= {"volcano.sh/queue-name": scheduling.queue} if scheduling.queue else {}
        labels |= {"ray.io/priority-class-name": scheduling.priority} if scheduling.priority != "normal" else {}
    return labels
