"""The pages of docs/deployment: their values, their fleet files, and jobs for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml
from tests.unit.fleet.chart.conftest import CHART

import forebay as fb
from forebay.fleet.fleet_file import Fleet, parse_fleet

DOCS = CHART.parents[2] / "docs" / "deployment"
CLUSTERS = ("eks", "gke", "kind", "networks", "on-prem", "queues")
"""Pages that describe a cluster by values and a fleet file."""
DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True)
class ClusterPage:
    """A page that describes a cluster."""

    name: str

    @cached_property
    def text(self) -> str:
        return (DOCS / f"{self.name}.md").read_text().replace("sha256:...", DIGEST)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return its values of the chart: the YAML with a name of the cluster."""
        found = [
            text for pair in re.findall(r"```yaml\n(.*?)```|<<'END'\n(.*?)END", self.text, re.DOTALL) for text in pair
        ]
        (values,) = [each for each in map(yaml.safe_load, filter(None, found)) if "clusterName" in each]
        return dict(values)

    @cached_property
    def fleet(self) -> Fleet:
        """Return its fleet file: the TOML whose entries have access alone."""
        blocks = re.findall(r"```toml\n(.*?)```", self.text, re.DOTALL)
        (found,) = [each for each in map(parse_fleet, blocks) if not any(one.sku for one in each.cluster)]
        return found

    def sku(self) -> tuple[str, Mapping[str, Any]]:
        """Return its SKU."""
        ((name, sku),) = self.values["skus"].items()
        return name, sku

    def job(self, spot: str = "never", **scheduling: Any) -> fb.JobSpec:
        """Return a job with two workers, each of all GPUs of a machine."""
        name, sku = self.sku()
        shape = {"cpu": "1", "memory": "1Gi", "gpus": sku.get("gpus", 0)}
        workers = fb.fleet.TaskWorkers(min=2, sku=(name,), spot=spot, **shape)  # type: ignore[arg-type]
        task = fb.fleet.Task(command=("true",), workers=workers)
        return fb.JobSpec(
            name="paged", storage="s3://lake/runs", task=(task,), scheduling=fb.fleet.Scheduling(**scheduling)
        )


def expected(values: Mapping[str, Any], sku: Mapping[str, Any], market: str) -> dict[str, Any]:
    """Facts of a worker's pod that values say, read without the catalogue."""
    own = ((sku.get("markets") or {}).get({"on-demand": "onDemand"}.get(market, market))) or {}
    cache = values.get("cache", {})
    image = values["image"]
    return {
        "account": "forebay-ray",
        "image": f"{image['repository']}@{image['digest']}"
        if image.get("digest")
        else f"{image['repository']}:{image['tag']}",
        "pull secrets": image.get("pullSecrets", []),
        "selector": {**sku.get("nodeSelector", {}), **own.get("nodeSelector", {})},
        "tolerations": [*sku.get("tolerations", []), *own.get("tolerations", [])],
        "cache": (cache.get("mode", "emptyDir"), cache.get("sizeLimit", "100Gi")),
        "secrets": dict(values.get("storage", {}).get("secretEnv", {})),
        "hadoop": values.get("hdfs", {}).get("configMap"),
        "resources": sku.get("resources", {}).keys(),
    }


def facts(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same facts of a rendered group of workers."""
    spec = group["template"]["spec"]
    container = spec["containers"][0]
    volumes = {each["name"]: each for each in spec["volumes"]}
    cache = volumes.get("cache", {})
    mode = next((name for name in ("emptyDir", "hostPath") if name in cache), "ephemeralClaim" if cache else "none")
    share = {each["name"]: each.get("value") for each in container["env"]}.get("FOREBAY_CACHE_BYTES")
    return {
        "account": spec.get("serviceAccountName"),
        "image": container["image"],
        "pull secrets": [each["name"] for each in spec.get("imagePullSecrets", [])],
        "selector": spec.get("nodeSelector", {}),
        "tolerations": spec.get("tolerations", []),
        "cache": (mode, share),
        "secrets": {
            each["name"]: "/".join(each["valueFrom"]["secretKeyRef"].values())
            for each in container["env"]
            if "valueFrom" in each
        },
        "hadoop": volumes.get("hadoop", {}).get("configMap", {}).get("name"),
        "resources": container["resources"]["requests"].keys()
        - {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"},
    }


def compared(group: Mapping[str, Any], values: Mapping[str, Any], sku: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the facts of a group, and what the values say of each."""
    wanted = expected(values, sku, group["groupName"])
    mode, size = wanted["cache"]
    wanted["cache"] = (mode, None if mode == "none" else str(int(0.9 * _bytes(size))))
    return facts(group), wanted


def _bytes(size: str) -> int:
    return int(float(size[:-2]) * 1024 ** ("KMGT".index(size[-2]) + 1))
