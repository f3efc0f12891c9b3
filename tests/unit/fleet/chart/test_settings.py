"""Settings of the chart's own pods, its optional objects and its accounts."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.fleet.chart.conftest import CHART, HelmFailed, helm, named, render_with

from forebay.fleet.cluster import VISIBLE_GPUS
from forebay.fleet.status import FLEET_METRICS

ALL: dict[str, Any] = {
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
    "priorityClassName": "platform",
    "annotations": {"team": "ml"},
    "imagePullPolicy": "Always",
    "env": {"HTTPS_PROXY": "http://proxy:3128"},
    "secretEnv": {"TOKEN": "proxy/token"},
}
EVERY: dict[str, Any] = {
    "controller": {"enabled": True, "fleetSecret": "fleet", "storages": ["s3://lake/runs"]},
    "cluster": {"enabled": True},
    "notebook": {"enabled": True},
    "cache": {"mode": "hostPath", "prepareHostPath": True},
}
CRDS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1", "monitoring.coreos.com/v1")


def templates(text: str) -> dict[str, dict[str, Any]]:
    found = (each for each in yaml.load_all(text, yaml.CSafeLoader) if each)
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found if "template" in each.get("spec", {})}


@pytest.mark.parametrize(("name", "variable"), [("123", "A_1"), ("on", "ON")])
def test_names_like_numbers_and_booleans_stay_texts(helms: list[str], tmp_path: Path, name: str, variable: str) -> None:
    """Kubernetes has such names, and the API server refuses a number in their place."""

    def rendered(name: str, variable: str) -> list[object]:
        pods = {
            "priorityClassName": name,
            "env": {variable: "x"},
            "secretEnv": {f"{variable}_": f"{name}/{name}"},
        }
        values = {
            **EVERY,
            "image": {"pullSecrets": [name]},
            "controller": {
                "enabled": True,
                "fleetSecret": name,
                "storages": [f"/mnt/{name}: runs"],
                "journal": {"storageClass": name},
            },
            "storage": {"secretEnv": {"A": f"{name}/{name}"}},
            "networkPolicy": {"operatorNamespace": name, "metricsNamespace": name},
            "kueue": {"clusterQueue": name},
            "pods": {"all": pods},
        }
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values))
        return list(yaml.load_all(helm("template", name, CHART, "-n", name, "-f", path), yaml.CSafeLoader))

    def replaced(value: object) -> object:
        if isinstance(value, dict):
            return {str(replaced(key)): replaced(each) for key, each in value.items() if "checksum" not in str(key)}
        if isinstance(value, list):
            return [replaced(each) for each in value]
        return value.replace("plain", name).replace("PLAIN", variable) if isinstance(value, str) else value

    assert replaced(rendered(name, variable)) == replaced(rendered("plain", "PLAIN"))


def test_every_pod_of_the_chart_is_placed_by_its_values(helms: list[str], tmp_path: Path) -> None:
    env = {"HTTPS_PROXY": "http://other:1", VISIBLE_GPUS: "all"}
    own = {"priorityClassName": "urgent", "nodeSelector": {"disk": "ssd"}, "env": env}
    found = templates(render_with({**EVERY, "pods": {"all": ALL, "controller": own}}, tmp_path))
    assert len(found) == 6
    for name, template in found.items():
        spec, (container,) = template["spec"], template["spec"]["containers"]
        is_controller = name == "forebay-controller"
        assert template["metadata"]["annotations"]["team"] == "ml"
        assert container["imagePullPolicy"] == "Always"
        assert spec["priorityClassName"] == ("urgent" if is_controller else "platform")
        if name == "forebay-cache":
            assert {"name": VISIBLE_GPUS, "value": "void"} in container["env"]
            continue  # it follows the machines, test_cache.py
        assert spec["tolerations"] == ALL["tolerations"] and spec["affinity"] == ALL["affinity"]
        assert spec["nodeSelector"] == ({"pool": "system"} | ({"disk": "ssd"} if is_controller else {}))
        found_env = {each["name"]: each for each in container["env"]}
        assert found_env[VISIBLE_GPUS]["value"] == ("all" if is_controller else "void"), "none of them asks for a GPU"
        assert found_env["HTTPS_PROXY"]["value"] == ("http://other:1" if is_controller else "http://proxy:3128")
        assert found_env["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "proxy", "key": "token"}


def test_new_machines_restart_the_agent_and_nothing_else(helms: list[str], tmp_path: Path) -> None:
    more = {**EVERY, "skus": {"cpu": {"cpu": "4", "memory": "16Gi", "max": 9}}}
    before, after = templates(render_with(EVERY, tmp_path)), templates(render_with(more, tmp_path))
    assert [name for name in before if before[name] != after[name]] == ["forebay-agent"]


def test_accounts_have_their_own_identities(helms: list[str], tmp_path: Path) -> None:
    accounts = {
        "annotations": {"role": "shared", "team": "ml"},
        "ray": {"annotations": {"role": "reads"}},
        "controller": {"annotations": {"role": "writes"}},
    }
    text = render_with({**EVERY, "accounts": accounts}, tmp_path)
    roles = {
        name: named(text, "ServiceAccount", f"forebay-{name}")["metadata"]["annotations"]
        for name in ("submitter", "ray", "controller")
    }
    assert {name: each["role"] for name, each in roles.items()} == {
        "submitter": "shared",
        "ray": "reads",
        "controller": "writes",
    }
    assert all(each["team"] == "ml" for each in roles.values())


OPTIONAL = {
    "kueue.clusterQueue": ({"kueue": {"clusterQueue": "research"}}, "LocalQueue", "Install Kueue"),
    "monitoring.alerts": ({"monitoring": {"alerts": True}}, "PrometheusRule", "Install the operator of Prometheus"),
    "monitoring.podMonitor": ({"monitoring": {"podMonitor": True}}, "PodMonitor", "Install the operator of Prometheus"),
}


@pytest.mark.parametrize("value", OPTIONAL)
def test_an_optional_object_without_its_kind_is_refused_by_its_value(
    helms: list[str], tmp_path: Path, value: str
) -> None:
    values, kind, advice = OPTIONAL[value]
    # As a cluster that serves Pods, and nothing more.
    with pytest.raises(HelmFailed) as caught:
        render_with(values, tmp_path, "--api-versions", "v1/Pod")
    assert f"{value} is set, and this cluster has no {kind}" in str(caught.value)
    assert f"{advice} first, or leave {value} out" in str(caught.value)
    assert kind in render_with(values, tmp_path), "without a cluster, what was asked for is shown"
    assert kind not in render_with({}, tmp_path, "--api-versions", "v1/Pod", *both(CRDS))


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (("kueue.x-k8s.io/v1beta2",), "v1beta2"),
        (("kueue.x-k8s.io/v1beta1",), "v1beta1"),
        (("kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"), "v1beta2"),
        ((), "v1beta2"),
    ],
)
def test_the_newest_version_of_kueue_that_is_served_is_used(
    helms: list[str], tmp_path: Path, served: tuple[str, ...], version: str
) -> None:
    values = {"kueue": {"clusterQueue": "research"}}
    kinds = [f"{each}/LocalQueue" for each in served]
    for words in (both(served), both((*served, *kinds, "v1/Pod")) if served else []):
        found = named(render_with(values, tmp_path, *words), "LocalQueue", "forebay")
        assert found["apiVersion"] == f"kueue.x-k8s.io/{version}"
        assert found["spec"] == {"clusterQueue": "research"}


def both(versions: tuple[str, ...]) -> list[str]:
    return [word for each in versions for word in ("--api-versions", each)]


def test_monitors_have_the_labels_by_which_they_are_found(helms: list[str], tmp_path: Path) -> None:
    text = render_with({"monitoring": {"podMonitor": True, "labels": {"release": "prometheus"}}}, tmp_path)
    found = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each and "coreos" in each["apiVersion"]]
    assert found and all(each["metadata"]["labels"]["release"] == "prometheus" for each in found)


def test_alerts_ask_for_exported_metrics_of_parts_that_are_there(helms: list[str], tmp_path: Path) -> None:
    alerts = {"monitoring": {"alerts": True}}
    rules = [named(render_with(values, tmp_path), "PrometheusRule", "forebay") for values in (alerts, EVERY | alerts)]
    alone, both_parts = ([rule for group in each["spec"]["groups"] for rule in group["rules"]] for each in rules)
    assert [each["alert"] for each in alone] == ["ForebayCapacityOld"]
    assert len(both_parts) == 4
    for each in both_parts:
        names = set(re.findall(r"forebay_(\w+)", each["expr"]))
        assert names and names <= FLEET_METRICS.keys(), each["expr"]
        assert each["expr"].count('{namespace="ml"}') == len(re.findall("forebay_", each["expr"]))
        assert each["annotations"].keys() == {"summary", "action"}


def test_probes_and_monitors_ask_the_port_that_is_served(helms: list[str], tmp_path: Path) -> None:
    text = render_with(EVERY | {"monitoring": {"podMonitor": True}}, tmp_path)
    for name in ("forebay-agent", "forebay-controller"):
        (container,) = templates(text)[name]["spec"]["containers"]
        assert "8081" in " ".join(map(str, container["args"])) and "--status-port" in " ".join(container["args"])
        assert container["ports"] == [{"name": "status", "containerPort": 8081}]
        paths = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
        assert paths["readiness"] == {"path": "/readyz", "port": "status"}
        assert paths["startup"] == paths["liveness"] == {"path": "/livez", "port": "status"}
    monitor = named(text, "PodMonitor", "forebay-own")["spec"]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["status"]


LABELS = st.dictionaries(st.sampled_from(["sku", "spot", "zone"]), st.sampled_from(["a", "b"]), max_size=2)
TAINTS = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from("xyz"), "operator": st.just("Exists")}), max_size=2, unique_by=str
)
MARKET = st.fixed_dictionaries({"enabled": st.booleans(), "nodeSelector": LABELS, "tolerations": TAINTS})
SKU = st.fixed_dictionaries(
    {
        "cpu": st.just("4"),
        "memory": st.just("8Gi"),
        "max": st.just(1),
        "nodeSelector": LABELS,
        "tolerations": TAINTS,
        "markets": st.fixed_dictionaries({"onDemand": MARKET, "spot": MARKET}),
    }
)


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.variation)])
def test_the_folder_of_the_cache_is_made_where_workers_may_run(
    helms: list[str], tmp_path_factory: pytest.TempPathFactory, examples: int
) -> None:
    """Each market of a SKU is a kind of node.

    The DaemonSet tolerates its taints, and one of its terms is its labels.
    """
    folder = tmp_path_factory.mktemp("values")

    @settings(max_examples=examples, deadline=None)
    @given(skus=st.dictionaries(st.sampled_from(["cpu", "h100", "a100"]), SKU, min_size=1, max_size=2))
    def check(skus: dict[str, Any]) -> None:
        skus = copy.deepcopy(skus)
        values = {"skus": skus, "cache": {"mode": "hostPath", "prepareHostPath": True}}
        spec = templates(render_with(values, folder))["forebay-cache"]["spec"]
        kinds = [
            ({**sku["nodeSelector"], **market["nodeSelector"]}, [*sku["tolerations"], *market["tolerations"]])
            for sku in skus.values()
            for market in sku["markets"].values()
            if market["enabled"]
        ]
        tolerations = spec.get("tolerations", [])
        assert all(each in tolerations for _, taints in kinds for each in taints)
        assert all(any(each in taints for _, taints in kinds) for each in tolerations), "and no others"
        terms = terms_of(spec)
        if any(not labels for labels, _ in kinds):
            assert terms == [], "any node may be one of them"
        else:
            wanted = [sorted(labels.items()) for labels, _ in kinds]
            assert sorted(terms) == sorted(each for at, each in enumerate(wanted) if each not in wanted[:at])

    check()


def terms_of(spec: dict[str, Any]) -> list[list[tuple[str, str]]]:
    if "affinity" not in spec:
        return []
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        sorted((each["key"], value) for each in term["matchExpressions"] for value in each["values"])
        for term in required["nodeSelectorTerms"]
    ]
