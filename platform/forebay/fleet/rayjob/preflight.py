"""Rules of KubeRay's operator beyond its CRDs.

A RayJob that breaks one is accepted and fails later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forebay.errors import InvalidOption
from forebay.fleet.rayjob.attempt import MAX_OBJECT_NAME

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
_AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"
_TOKEN_SINCE = (2, 52)
_OF_A_SHELL = re.compile(r"[$`\x7f]")
LONGEST_LINE = 100_000
"""Bytes of the submitter's line, which is one argument of bash. Linux allows 131,072."""

Facts = Mapping[str, Any]
Check = Callable[[Facts], Iterator[str]]


def preflight(job: Facts) -> None:
    """Raise `InvalidOption` with all broken rules.

    Checked on KubeRay 1.7.0.
    """
    found = faults(job)
    if found:
        listed = "".join(f"\n  {fault}" for fault in found)
        raise InvalidOption(
            f"KubeRay's operator would refuse the RayJob {job['metadata']['name']}:{listed}\n"
            "Correct the job file or the fleet file.",
            faults=found,
        )


def faults(job: Facts) -> list[str]:
    """Rules that a RayJob breaks, one sentence each."""
    return [fault for check in _CHECKS for fault in check(job)]


def _metadata(job: Facts) -> Iterator[str]:
    name = job["metadata"]["name"]
    if len(name) > MAX_OBJECT_NAME:
        yield f"its name has {len(name)} characters; at most {MAX_OBJECT_NAME} are allowed"
    if not _DNS_1035.fullmatch(name):
        yield f"{name!r} is not a label of DNS"


def _life(job: Facts) -> Iterator[str]:
    spec = job["spec"]
    shuts_down, ttl = spec.get("shutdownAfterJobFinishes", False), spec.get("ttlSecondsAfterFinished", 0)
    if not str(spec.get("entrypoint", "")).strip() and spec.get("submissionMode") != "InteractiveMode":
        yield "its entrypoint is empty"
    if spec.get("suspend") and not shuts_down:
        yield "a suspended job needs shutdownAfterJobFinishes"
    if ttl < 0:
        yield "ttlSecondsAfterFinished is negative"
    if ttl > 0 and not shuts_down:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    if spec.get("backoffLimit", 0) != 0:
        yield "backoffLimit is not 0: a retry of KubeRay would be a second run under one attempt"
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if name in spec and spec[name] <= 0:
            yield f"{name} is not above 0"


def _selector(job: Facts) -> Iterator[str]:
    spec = job["spec"]
    selector = spec.get("clusterSelector")
    if not selector:
        if "rayClusterSpec" not in spec:
            yield "it has neither rayClusterSpec nor clusterSelector"
        return
    if not selector.get("ray.io/cluster"):
        yield "clusterSelector names no cluster under ray.io/cluster"
    if spec.get("suspend"):
        yield "a job on a shared cluster cannot be suspended"
    if spec.get("submissionMode") == "SidecarMode":
        yield "a job on a shared cluster cannot be submitted by a sidecar"
    if "kueue.x-k8s.io/queue-name" in (job["metadata"].get("labels") or {}):
        yield "a job on a shared cluster cannot wait in a queue of Kueue"


def _submission(job: Facts) -> Iterator[str]:
    spec = job["spec"]
    if spec.get("submissionMode") == "SidecarMode":
        for name in ("submitterPodTemplate", "submitterConfig"):
            if name in spec:
                yield f"SidecarMode takes no {name}"
    text = spec.get("runtimeEnvYAML", "")
    found = _mapping(text) if text else {}
    if found is None:
        yield "runtimeEnvYAML is not a mapping"
        found = {}
    if names := [name for name, value in found.get("env_vars", {}).items() if _OF_A_SHELL.search(value)]:
        # It stands between double quotes there: `...` and $(...) would run.
        yield (
            f"the values of {', '.join(names)} have $, ` or a delete character, and on a shared cluster a shell of "
            'KubeRay replaces them: set them in the program, or write cluster = "own"'
        )
    if (size := len(f"{spec.get('entrypoint', '')}{text}".encode())) > LONGEST_LINE:
        yield (
            f"its words and variables have {size:,} bytes, and KubeRay writes them into one line of at most "
            f"{LONGEST_LINE:,}: put long lists into a file"
        )


def _deletion(job: Facts) -> Iterator[str]:
    spec = job["spec"]
    strategy = spec.get("deletionStrategy")
    if not strategy:
        return
    rules = strategy.get("deletionRules") or ()
    policies = [rule.get("policy") for rule in rules]
    policies += [strategy[name].get("policy") for name in ("onSuccess", "onFailure") if name in strategy]
    if rules and spec.get("shutdownAfterJobFinishes"):
        yield "deletionRules exclude shutdownAfterJobFinishes"
    if "DeleteWorkers" in policies and (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling"):
        yield "DeleteWorkers excludes an autoscaler"
    if spec.get("clusterSelector") and {"DeleteCluster", "DeleteWorkers"} & set(policies):
        yield "the shared cluster cannot be deleted by a job"


def _groups(job: Facts) -> Iterator[str]:
    ray = job["spec"].get("rayClusterSpec")
    if ray is None:
        return
    names = [group["groupName"] for group in ray.get("workerGroupSpecs", ())]
    if len(set(names)) < len(names):
        yield f"two groups have one name in {names}"
    for name, group in _named_groups(ray):
        if not _containers(group):
            yield f"the group {name} has no container"
        params = group.get("rayStartParams") or {}
        if group.get("resources") and any(params.get(each) for each in _RESOURCE_PARAMS):
            yield f"the group {name} has resources and also {' or '.join(_RESOURCE_PARAMS)} in rayStartParams"
        if "labels" in params:
            yield f"the group {name} has labels in rayStartParams; they belong to its field labels"
        for key, value in (group.get("labels") or {}).items():
            if not _LABEL_NAME.fullmatch(key) or not _LABEL.fullmatch(value):
                yield f"the group {name} has the invalid label {key}={value}"


def _mounts(job: Facts) -> Iterator[str]:
    for name, group in _named_groups(job["spec"].get("rayClusterSpec") or {}):
        for container in _containers(group):
            paths = [each["mountPath"] for each in container.get("volumeMounts") or ()]
            if twice := sorted({path for path in paths if paths.count(path) > 1}):
                yield f"the group {name} mounts two volumes at {', '.join(twice)}"


def _replicas(job: Facts) -> Iterator[str]:
    for group in (job["spec"].get("rayClusterSpec") or {}).get("workerGroupSpecs", ()):
        least, most, name = group.get("minReplicas"), group.get("maxReplicas"), group["groupName"]
        if least is None or most is None or least > most:
            yield f"the group {name} needs minReplicas <= maxReplicas"
        elif group.get("replicas", 0) > most:
            yield f"the group {name} has more replicas than maxReplicas"


def _autoscaling(job: Facts) -> Iterator[str]:
    ray = job["spec"].get("rayClusterSpec") or {}
    variables = _env_of_head(ray)
    if not ray.get("enableInTreeAutoscaling"):
        if variables.get(_AUTOSCALER_V2) in ("1", "true"):
            yield f"{_AUTOSCALER_V2} is set, and there is no autoscaler"
        return
    version = (ray.get("autoscalerOptions") or {}).get("version")
    if version is not None and _AUTOSCALER_V2 in variables:
        yield f"autoscalerOptions.version and {_AUTOSCALER_V2} are both set"
    for name, group in _named_groups(ray):
        if group.get("suspend"):
            yield f"the group {name} cannot be suspended under an autoscaler"
        if version == "v2" and group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield f"the pods of the group {name} restart; the autoscaler v2 needs restartPolicy Never"
    if "kueue.x-k8s.io/queue-name" in (job["metadata"].get("labels") or {}):
        yield "Kueue takes no job with an autoscaler"


def _suspended_groups(job: Facts) -> Iterator[str]:
    ray = job["spec"].get("rayClusterSpec") or {}
    for group in ray.get("workerGroupSpecs", ()):
        if group.get("suspend") and not ray.get("enableInTreeAutoscaling"):
            yield f"the group {group['groupName']} is suspended, which needs a feature gate of the operator"


def _authentication(job: Facts) -> Iterator[str]:
    ray = job["spec"].get("rayClusterSpec") or {}
    if (ray.get("authOptions") or {}).get("mode") != "token":
        return
    version = str(ray.get("rayVersion", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers:
        yield f"token authentication needs rayVersion, and it is {version!r}"
    elif (int(numbers[1]), int(numbers[2])) < _TOKEN_SINCE:
        yield f"token authentication needs Ray 2.52 or newer, and rayVersion is {version}"


def _fault_tolerance(job: Facts) -> Iterator[str]:
    ray = job["spec"].get("rayClusterSpec") or {}
    variables, params = _env_of_head(ray), (ray.get("headGroupSpec") or {}).get("rayStartParams") or {}
    options = ray.get("gcsFaultToleranceOptions")
    if params.get("redis-username") or "REDIS_USERNAME" in variables:
        yield "the user of Redis belongs to gcsFaultToleranceOptions"
    if options is None:
        if "RAY_REDIS_ADDRESS" in variables:
            yield "RAY_REDIS_ADDRESS is set without gcsFaultToleranceOptions"
        return
    for name in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
        if name in variables:
            yield f"{name} is set beside gcsFaultToleranceOptions"
    if params.get("redis-password"):
        yield "redis-password is set beside gcsFaultToleranceOptions"
    for name in ("ray.io/ft-enabled", "ray.io/external-storage-namespace"):
        if (job["metadata"].get("annotations") or {}).get(name):
            yield f"the annotation {name} is set beside gcsFaultToleranceOptions"


_CHECKS: Sequence[Check] = (
    _metadata,
    _life,
    _selector,
    _submission,
    _deletion,
    _groups,
    _mounts,
    _replicas,
    _autoscaling,
    _suspended_groups,
    _authentication,
    _fault_tolerance,
)


def _named_groups(ray: Facts) -> Iterator[tuple[str, Facts]]:
    if "headGroupSpec" in ray:
        yield "head", ray["headGroupSpec"]
    for group in ray.get("workerGroupSpecs", ()):
        yield group["groupName"], group


def _containers(group: Facts) -> Sequence[Facts]:
    found: Sequence[Facts] = group["template"]["spec"].get("containers") or ()
    return found


def _env_of_head(ray: Facts) -> dict[str, str]:
    containers = _containers(ray["headGroupSpec"]) if "headGroupSpec" in ray else ()
    variables = containers[0].get("env") or () if containers else ()
    return {each["name"]: str(each.get("value", "")) for each in variables}


def _mapping(text: str) -> dict[str, Any] | None:
    # Ours is written as JSON, which is YAML too.
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
