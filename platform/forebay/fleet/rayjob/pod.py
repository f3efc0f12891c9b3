"""Pods of an attempt, at Pod Security level `restricted`."""

from __future__ import annotations

import shlex
from typing import Any

from forebay.fleet.cluster import VISIBLE_GPUS, CacheVolume, Cluster, Hdfs
from forebay.fleet.rayjob.attempt import CODE_FOLDER, PlacedAttempt, escaped
from forebay.fleet.spec.job_spec import Launch, Mount
from forebay.fleet.spec.quantity import nbytes

SETUP_FAILED = 97
"""Exit code of a container whose code or setup could not be prepared."""
CACHE_SHARE = 0.9
GRACE_AFTER_DRAIN_S = 15
NO_GPUS = {"name": VISIBLE_GPUS, "value": "void"}
"""As if the node had no NVIDIA runtime. `none` would still mount the driver."""
_HADOOP, _KEYTAB, _TICKET = "/etc/forebay/hadoop", "/etc/forebay/krb", "/run/forebay/krb"

KubeObject = dict[str, Any]


def ray_container(
    attempt: PlacedAttempt, cluster: Cluster, resources: dict[str, str], *, has_cache: bool
) -> KubeObject:
    """Return the container of a Ray node.

    Its `args` run before `ray start`: KubeRay puts them there.
    """
    launch = attempt.spec.launch
    cache = cluster.cache if has_cache and cluster.cache.mode != "none" else None
    container: KubeObject = {
        "name": "ray",
        "image": launch.image or cluster.image,
        "env": _env(attempt, cluster, cache),
        "resources": {"requests": resources, "limits": _limits(resources)},
        "securityContext": container_security(),
        "volumeMounts": _volume_mounts(launch, cluster, cache),
    }
    before = before_ray(attempt)
    if before:
        container["args"] = [before]
    if attempt.code:
        container["workingDir"] = "/work"
    return container


def pod_spec(attempt: PlacedAttempt, cluster: Cluster, container: KubeObject, *, has_cache: bool) -> KubeObject:
    """Return the pod around a Ray container.

    Workers get no token of the cluster, but the head's autoscaler needs one.
    """
    cache = cluster.cache if has_cache and cluster.cache.mode != "none" else None
    spec: KubeObject = {
        # A pod that ended is replaced by its cluster, and the autoscaler (v2) demands it.
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": _volumes(attempt.spec.launch, cluster, cache),
        "securityContext": pod_security(),
        "enableServiceLinks": False,
    }
    if account := (attempt.submitter and attempt.submitter.service_account) or cluster.service_account:
        spec["serviceAccountName"] = account
    if cluster.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    if cluster.hdfs and cluster.hdfs.keytab_secret:
        _add_kinit(spec, cluster.hdfs, container["image"], is_native=cluster.native_sidecars)
    return spec


def before_ray(attempt: PlacedAttempt) -> str:
    """Return shell lines to run before `ray start`.

    They unpack the code, and run the setup. A failure ends the container with code 97. Without `|| exit`, KubeRay's
    `ulimit ...; ray start` would start Ray after a failed setup. A trap on EXIT would keep bash as process 1, and the
    signal to end would never reach Ray. Each line has its own group, so that its comments and lists end with it.
    """
    lines = list(attempt.spec.launch.setup)
    if attempt.fetch_code:
        lines.insert(0, f"{shlex.join(attempt.fetch_code)} && cd {CODE_FOLDER}")
    if not lines:
        return ""
    groups = " && ".join(f"{{ {line}\n}}" for line in lines)
    return escaped(f"{{ {groups}; }} || exit {SETUP_FAILED}")


def pod_security() -> KubeObject:
    """Security of a pod under the level `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def with_gpus_hidden(template: KubeObject, gpu_resource: str) -> KubeObject:
    """Return a pod template whose containers see no GPUs, but those that ask for some.

    A device plugin says which GPUs a container sees only where the container asks for one. A variable that is set
    stays.
    """
    spec = dict(template["spec"])
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [_with_gpus_hidden(each, gpu_resource) for each in spec[kind]]
    return {**template, "spec": spec}


def _with_gpus_hidden(container: KubeObject, gpu_resource: str) -> KubeObject:
    env = container.get("env", [])
    asked = container.get("resources", {})
    has_own = "claims" in asked or any(
        name == gpu_resource or "gpu" in name or "/mig-" in name
        for table in ("requests", "limits")
        for name in asked.get(table, {})
    )
    if has_own or any(each["name"] == VISIBLE_GPUS for each in env):
        return container
    return {**container, "env": [*env, NO_GPUS]}


def container_security() -> KubeObject:
    """Security of a container under the level `restricted`."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _limits(resources: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in resources.items() if name != "ephemeral-storage"}


def _env(attempt: PlacedAttempt, cluster: Cluster, cache: CacheVolume | None) -> list[KubeObject]:
    plain = attempt.environment_in(cluster)
    if cache is not None:
        plain |= {"FOREBAY_CACHE_DIR": cache.path, "FOREBAY_CACHE_BYTES": str(int(CACHE_SHARE * nbytes(cache.size)))}
    if cluster.hdfs:
        plain["HADOOP_CONF_DIR"] = _HADOOP
        if cluster.hdfs.keytab_secret:
            plain["KRB5CCNAME"] = f"FILE:{_TICKET}/ccache"
    plain |= attempt.spec.launch.env
    own = None if attempt.submitter is None else attempt.submitter.secret_env
    secret = {**(cluster.secret_env if own is None else own), **attempt.spec.launch.secret_env}
    return [
        *({"name": name, "value": escaped(value)} for name, value in plain.items() if name not in secret),
        *({"name": name, "valueFrom": {"secretKeyRef": _key_of_secret(where)}} for name, where in secret.items()),
    ]


def _key_of_secret(reference: str) -> dict[str, str]:
    name, _, key = reference.partition("/")
    return {"name": name, "key": key}


def _volume_mounts(launch: Launch, cluster: Cluster, cache: CacheVolume | None) -> list[KubeObject]:
    mounts: list[KubeObject] = [{"name": "work", "mountPath": "/work"}]
    if cache is not None:
        mounts.append({"name": "cache", "mountPath": cache.path})
    if cluster.hdfs:
        mounts.append({"name": "hadoop", "mountPath": _HADOOP, "readOnly": True})
        if cluster.hdfs.keytab_secret:
            mounts.append({"name": "krb-ticket", "mountPath": _TICKET, "readOnly": True})
    mounts += [
        {"name": f"mount-{number}", "mountPath": mount.path, "readOnly": True}
        for number, mount in enumerate(launch.mounts)
    ]
    return mounts


def _volumes(launch: Launch, cluster: Cluster, cache: CacheVolume | None) -> list[KubeObject]:
    volumes: list[KubeObject] = [{"name": "work", "emptyDir": {"sizeLimit": "1Gi"}}]
    if cache is not None:
        volumes.append({"name": "cache", **_cache_volume(cache, cluster.namespace)})
    if cluster.hdfs:
        volumes.append({"name": "hadoop", "configMap": {"name": cluster.hdfs.config_map}})
        if cluster.hdfs.keytab_secret:
            volumes.append({"name": "krb-keytab", "secret": _secret_volume(cluster.hdfs.keytab_secret)})
            volumes.append({"name": "krb-ticket", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    return volumes + [{"name": f"mount-{number}", **_source(mount)} for number, mount in enumerate(launch.mounts)]


def _cache_volume(cache: CacheVolume, namespace: str) -> KubeObject:
    match cache.mode:
        case "hostPath":
            return {"hostPath": {"path": f"{cache.path}/{namespace}", "type": "Directory"}}
        case "ephemeralClaim":
            claim = {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": cache.storage_class,
                "resources": {"requests": {"storage": cache.size}},
            }
            return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
        case _:
            return {"emptyDir": {"sizeLimit": cache.size}}


def _secret_volume(name: str) -> KubeObject:
    # 0440 for the group of the pod: kinit refuses no mode, and others on the node cannot read it.
    return {"secretName": name, "defaultMode": 0o440}


def _source(mount: Mount) -> KubeObject:
    if mount.secret:
        return {"secret": _secret_volume(mount.secret)}
    if mount.config_map:
        return {"configMap": {"name": mount.config_map}}
    return {"persistentVolumeClaim": {"claimName": mount.claim, "readOnly": True}}


def _add_kinit(spec: KubeObject, hdfs: Hdfs, image: str, *, is_native: bool) -> None:
    """Add containers that keep a Kerberos ticket in memory.

    The first ticket is there before Ray starts. A native sidecar ends with Ray. Beside an ended Ray, a plain container
    runs on until KubeRay deletes the pod, which it does when the Ray container has ended.
    """
    words = ("kinit", "-kt", f"{_KEYTAB}/keytab", "-c", f"{_TICKET}/ccache", hdfs.principal or "")
    kinit, pause = shlex.join(words), f"sleep {int(hdfs.renew_every)}"
    probe = {
        "exec": {"command": ["klist", "-s", "-c", f"{_TICKET}/ccache"]},
        "periodSeconds": 1,
        "failureThreshold": 60,
    }
    if is_native:
        renew = f"while {kinit}; do {pause}; done; exit 1"
        sidecar = {**_kinit("kinit", image, renew), "restartPolicy": "Always", "startupProbe": probe}
        spec["initContainers"] = [sidecar]
        return
    # In a pod that is never restarted, a container that ended stays ended: it tries again itself.
    again = f"while {pause}; do until {kinit}; do sleep 30; done; done"
    spec["initContainers"] = [_kinit("kinit", image, kinit)]
    spec["containers"] = [*spec["containers"], _kinit("kinit-again", image, again)]


def _kinit(name: str, image: str, line: str) -> KubeObject:
    return {
        "name": name,
        "image": image,
        "command": ["/bin/sh", "-c", escaped(line)],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "krb-keytab", "mountPath": _KEYTAB, "readOnly": True},
            {"name": "krb-ticket", "mountPath": _TICKET},
        ],
    }
