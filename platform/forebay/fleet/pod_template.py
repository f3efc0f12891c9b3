"""Patch of the pods of a cluster, by strategic merge.

It adds what the fields of a cluster do not have: annotations, volumes, variables, a runtime class. It cannot change who
a pod is, where it runs or what it may do: the fields that placement and security depend on are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from forebay.errors import InvalidJobSpec
from forebay.fleet.spec.fields import fault
from forebay.fleet.spec.names import check_env_name, check_label
from forebay.runtime.formatting import did_you_mean

RAY = "ray"
"""Name of the container of heads and workers. In a patch it also stands for the submitter's."""
_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Lists whose items are merged by a key, as Kubernetes does. Other lists are replaced."""
_OURS = re.compile(r"work|cache|hadoop|krb-keytab|krb-ticket|mount-\d+")
_OUR_PATHS = ("/work", "/etc/forebay", "/run/forebay", "/var/run/secrets")
_SECURITY = "it decides what a pod may do on its node"
_PLACE = "placement counts free machines by"
_SPEC: Mapping[str, str] = {
    "nodeSelector": f"{_PLACE} nodeSelector of head and skus.NAME",
    "tolerations": f"{_PLACE} tolerations of head and skus.NAME",
    "nodeName": f"{_PLACE} nodeSelector of head and skus.NAME",
    "schedulerName": "the key scheduler chooses it",
    "priorityClassName": "scheduling.priority of the job chooses it",
    "priority": "scheduling.priority of the job chooses it",
    "preemptionPolicy": "scheduling.priority of the job chooses it",
    "serviceAccountName": "it is whose access to storage a pod has: the chart's account forebay-ray",
    "serviceAccount": "it is whose access to storage a pod has: the chart's account forebay-ray",
    "automountServiceAccountToken": "it is the right to ask the API server",
    "imagePullSecrets": "image.pullSecrets has them",
    "securityContext": _SECURITY,
    "hostPID": _SECURITY,
    "hostIPC": _SECURITY,
    "hostUsers": _SECURITY,
    "shareProcessNamespace": _SECURITY,
    "hostAliases": "it chooses the hosts that names lead to",
    "dnsConfig": "it chooses the hosts that names lead to",
    "dnsPolicy": "it follows hostNetwork",
    "restartPolicy": "a pod that ended is replaced, and never restarted",
    "terminationGracePeriodSeconds": "drain.onDemand and drain.spot decide it",
    "activeDeadlineSeconds": "scheduling.finish_within of the job decides it",
}
_SPEC_ALLOWED = frozenset(
    (
        "affinity",
        "containers",
        "hostNetwork",
        "initContainers",
        "resourceClaims",
        "runtimeClassName",
        "topologySpreadConstraints",
        "volumes",
    )
)
_CONTAINER: Mapping[str, str] = {
    "image": "image of the values, or launch.image of the job, has it",
    "command": "the run starts by it",
    "args": "the run starts by it",
    "workingDir": "the code of the job lies there",
    "resources": f"{_PLACE} cpu, memory and gpus; devices and huge pages are skus.NAME.resources",
    "securityContext": _SECURITY,
    "envFrom": "it could replace the variables of the run: name them in env",
}
_CONTAINER_ALLOWED = frozenset(("name", "env", "volumeMounts", "volumeDevices", "imagePullPolicy", "lifecycle"))
_INIT: Mapping[str, str] = {
    "securityContext": _SECURITY,
    "restartPolicy": "placement does not count sidecar containers",
    "envFrom": "name its variables in env",
}
_INIT_ALLOWED = _CONTAINER_ALLOWED | {"image", "command", "args", "workingDir", "resources"}
_VOLUMES = frozenset(("name", "emptyDir", "configMap", "persistentVolumeClaim", "ephemeral", "downwardAPI", "secret"))
_VOLUME: Mapping[str, str] = {
    "hostPath": "devices come by skus.NAME.resources, and a folder of the node by cache.mode hostPath",
    **dict.fromkeys(("nfs", "iscsi", "csi", "cephfs", "glusterfs", "rbd"), "it names a host: mount a claim of it"),
}


def check_pod_template(patch: object, *path: str | int) -> None:
    """Raise `InvalidJobSpec` for a patch that may not be applied.

    The error has the path of the field, and where its value is set instead.
    """
    _only(patch, {"metadata", "spec"}, {}, path)
    _check_whole(patch, path)
    assert isinstance(patch, Mapping)
    metadata, spec = patch.get("metadata", {}), patch.get("spec", {})
    _only(metadata, {"labels", "annotations"}, {"name": "each attempt names its pods"}, (*path, "metadata"))
    for table in ("labels", "annotations"):
        _texts(metadata.get(table, {}), (*path, "metadata", table))
    for name, value in metadata.get("labels", {}).items():
        with _below(*path, "metadata"):
            check_label(name, value)
    for name in metadata.get("annotations", {}):
        if name.partition("/")[0].endswith(("forebay.dev", "ray.io")):
            raise fault("Forebay and KubeRay set it.", *path, "metadata", "annotations", name)
    _check_spec(spec, (*path, "spec"))


def _check_spec(spec: Any, at: tuple[str | int, ...]) -> None:
    _only(spec, _SPEC_ALLOWED, _SPEC, at)
    if "hostNetwork" in spec and not isinstance(spec["hostNetwork"], bool):
        raise fault("it must be true or false.", *at, "hostNetwork")
    affinity = spec.get("affinity", {})
    _only(
        affinity,
        {"podAffinity", "podAntiAffinity"},
        {"nodeAffinity": f"{_PLACE} nodeSelector of head and skus.NAME"},
        (*at, "affinity"),
    )
    for number, each in enumerate(_items(spec, "containers", at)):
        here = (*at, "containers", number)
        if each["name"] != RAY:
            raise fault(
                f"it may patch the container {RAY!r} alone: placement does not count others. An init container may be "
                "added.",
                *here,
                "name",
            )
        _check_container(each, _CONTAINER_ALLOWED, _CONTAINER, here)
    for number, each in enumerate(_items(spec, "initContainers", at)):
        here = (*at, "initContainers", number)
        if each["name"] == "kinit":
            raise fault("Forebay makes this container.", *here, "name")
        _check_container(each, _INIT_ALLOWED, _INIT, here)
    for number, each in enumerate(_items(spec, "volumes", at)):
        here = (*at, "volumes", number)
        if _OURS.fullmatch(each["name"]):
            raise fault(f"Forebay makes the volume {each['name']!r}. Choose another name.", *here, "name")
        _only(each, _VOLUMES, _VOLUME, here)
    for name in ("resourceClaims", "topologySpreadConstraints"):
        _items(spec, name, at)


def _check_container(container: Any, allowed: Collection[str], refused: Mapping[str, str], at: Any) -> None:
    _only(container, allowed, refused, at)
    for number, each in enumerate(_items(container, "env", at)):
        here = (*at, "env", number)
        with _below(*here):
            check_env_name(each["name"], "name")
        _only(each, {"name", "value", "valueFrom"}, {}, here)
        source = each.get("valueFrom", {})
        _only(
            source,
            {"fieldRef", "resourceFieldRef", "configMapKeyRef"},
            {"secretKeyRef": "storage.secretEnv has the variables from Secrets"},
            (*here, "valueFrom"),
        )
        if not isinstance(each.get("value", ""), str):
            raise fault("it must be text in quotes.", *here, "value")
    for number, each in enumerate(_items(container, "volumeMounts", at)):
        if _OURS.fullmatch(str(each.get("name"))) or each["mountPath"].startswith(_OUR_PATHS):
            raise fault(f"Forebay mounts {each.get('name')} at {each['mountPath']}.", *at, "volumeMounts", number)


def _items(table: Any, name: str, at: tuple[str | int, ...]) -> list[Any]:
    """Return the items of a list, each with its merge key."""
    found = table.get(name, [])
    if not isinstance(found, list | tuple):
        raise fault("it must be a list.", *at, name)
    for number, each in enumerate(found):
        key = _MERGE_KEYS[name]
        if not isinstance(each, Mapping) or not isinstance(each.get(key), str) or not each[key]:
            raise fault(f"it needs the text {key!r}, by which items are merged.", *at, name, number)
    return list(found)


def _only(table: object, allowed: Collection[str], refused: Mapping[str, str], at: tuple[str | int, ...]) -> None:
    if not isinstance(table, Mapping):
        raise fault("it must be a table.", *at)
    for name in table:
        if name in refused:
            raise fault(f"it may not be patched: {refused[name]}.", *at, name)
        if name not in allowed:
            hint = did_you_mean(str(name), allowed) or f" A patch may have {', '.join(sorted(allowed))}."
            raise fault(f"it may not be patched.{hint}", *at, str(name))


@contextmanager
def _below(*path: str | int) -> Iterator[None]:
    """Put a path before the path of a fault."""
    try:
        yield
    except InvalidJobSpec as error:
        raise fault(str(error.facts["fault"]), *path, *error.facts["path"]) from None  # type: ignore[misc]


def _texts(table: object, at: tuple[str | int, ...]) -> None:
    if not isinstance(table, Mapping):
        raise fault("it must be a table.", *at)
    for name, value in table.items():
        if not isinstance(value, str):
            raise fault("it must be text in quotes.", *at, str(name))


def _check_whole(value: object, at: tuple[str | int, ...]) -> None:
    """Refuse directives and nulls: a patch takes nothing away."""
    if value is None:
        raise fault("a null would remove a field, and a patch only adds and changes. Leave it out.", *at)
    if isinstance(value, Mapping):
        for name, each in value.items():
            if str(name).startswith("$"):
                raise fault("directives of a merge are not known here. Leave it out.", *at, str(name))
            _check_whole(each, (*at, str(name)))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            _check_whole(each, (*at, number))


def patched(template: Mapping[str, Any], patch: Mapping[str, Any], kept_env: Collection[str] = ()) -> dict[str, Any]:
    """Return a pod template with a patch merged into it.

    The first container is the one that the patch calls `ray`. Variables in `kept_env` stay: the job set them.
    """
    if not patch:
        return dict(template)
    spec = dict(patch.get("spec", {}))
    main = template["spec"]["containers"][0]["name"]
    if "containers" in spec:
        spec["containers"] = [
            {**each, "name": main, "env": [one for one in each.get("env", ()) if one["name"] not in kept_env]}
            if "env" in each
            else {**each, "name": main}
            for each in spec["containers"]
        ]
    if "initContainers" in spec:
        image = template["spec"]["containers"][0]["image"]
        spec["initContainers"] = [{"image": image, **_restricted(), **each} for each in spec["initContainers"]]
    if spec.get("hostNetwork"):
        # Without it, a pod on the node's network asks the node's name server, which knows no Service.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    merged: dict[str, Any] = _merged(template, {**patch, "spec": spec})
    return merged


def _restricted() -> dict[str, Any]:
    return {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def _merged(base: Any, patch: Any, name: str = "") -> Any:
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        kept = {key: value for key, value in base.items() if key not in patch}
        changed = {key: _merged(base[key], value, key) if key in base else value for key, value in patch.items()}
        return kept | changed
    if name in _MERGE_KEYS and isinstance(base, list):
        key = _MERGE_KEYS[name]
        left = {each[key]: each for each in patch}
        found = [_merged(each, left.pop(each[key])) if each.get(key) in left else each for each in base]
        return [*found, *left.values()]
    return patch
