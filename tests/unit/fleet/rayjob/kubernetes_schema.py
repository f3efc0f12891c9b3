"""Validation of objects, as in an API server.

It has strict schemas, and rules in CEL.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

ROOT = Path(__file__).resolve().parents[4]
CRDS = Path(os.environ.get("KUBERAY_CRD_DIR", ROOT.parent / "shared" / "kuberay-crds"))
needs_crds = pytest.mark.skipif(
    not CRDS.exists(), reason="KubeRay's CRDs are not beside the project (../shared/kuberay-crds)"
)
CORE_VERSIONS = ("1.31", "1.34", "1.37")


def check_ray_job(job: dict[str, Any]) -> None:
    """Raise for a RayJob that strict validation refuses."""
    _validator("rayjobs").validate(job)
    _check_rules(_schema("rayjobs"), job)


def check_pods(job: dict[str, Any], version: str) -> None:
    """Raise for a pod that Kubernetes refuses.

    The version matters.
    """
    for template in pod_templates(job):
        metadata = {**template.get("metadata", {}), "name": "pod"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


def pod_templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    spec = job["spec"]
    ray = spec.get("rayClusterSpec")
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]] if ray else []
    return [spec["submitterPodTemplate"], *(group["template"] for group in groups)]


@functools.cache
def _schema(kind: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = yaml.load((CRDS / f"ray.io_{kind}.yaml").read_text(), Loader=loader)
    schema: dict[str, Any] = _strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


@functools.cache
def _validator(kind: str) -> Any:
    return jsonschema.Draft7Validator(_schema(kind))


def _strict(schema: Any) -> Any:
    """Return `schema` with unknown fields refused.

    Integers or texts are taken where the server takes both.
    """
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _strict(value) for name, value in schema.items()}
    if made.pop("x-kubernetes-int-or-string", False) is True:
        return {"type": ["integer", "string"]}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made["additionalProperties"] = made.get("x-kubernetes-preserve-unknown-fields", False) is True
    return made


def _check_rules(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            assert _holds(rule["rule"], json.dumps(value)), rule["message"]
    if isinstance(value, dict):
        for name, each in value.items():
            _check_rules(schema.get("properties", {}).get(name) or schema.get("additionalProperties"), each)
    elif isinstance(value, list):
        for each in value:
            _check_rules(schema.get("items"), each)


@functools.cache
def _holds(rule: str, value: str) -> bool:
    import celpy

    program = celpy.Environment()
    return bool(program.program(program.compile(rule)).evaluate({"self": celpy.json_to_cel(json.loads(value))}))
