"""Descriptions of clusters: the chart's catalogue, and entries of a fleet file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.fleet.catalogue import _OLD, DESCRIPTION, parse_catalogue
from forebay.fleet.cluster import Cluster
from forebay.fleet.fleet_file import ACCESS, parse_fleet

SCHEMA = Path(__file__).parents[3] / "deploy" / "helm" / "forebay" / "values.schema.json"
OF_THE_CHART = {"cache.prepareHostPath"}
"""Values inside of described tables that are about objects of the chart."""
FACTS: dict[str, Any] = {
    "version": 2,
    "namespace": "ml",
    "image": {"repository": "registry.example/forebay", "digest": "sha256:" + "0" * 64, "pullSecrets": ["pull"]},
    "ray": {"version": "2.60.0"},
    "head": {"cpu": "2", "memory": "8Gi", "nodeSelector": {"pool": "heads"}, "tolerations": []},
    "skus": {
        "h100": {
            "cpu": 96,
            "memory": "1Ti",
            "gpus": 8,
            "max": 16,
            "pricePerHour": 24.5,
            "spotPricePerHour": 0,
            "nodeSelector": {"sku": "h100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"vpc.amazonaws.com/efa": 32},
            "markets": {"onDemand": {"nodeSelector": {"pool": "reserved"}}, "spot": {"nodeSelector": {"pool": "spot"}}},
        }
    },
    "drain": {"onDemand": "40s", "spot": "90s"},
    "cache": {"mode": "emptyDir", "path": "/cache", "sizeLimit": "5Ti", "storageClass": ""},
    "storage": {"secretEnv": {"AWS_SECRET_ACCESS_KEY": "lake/key"}},
    "hdfs": {"configMap": "hadoop", "keytabSecret": "krb", "principal": "a@B", "renewEvery": "4h"},
    "cluster": {"enabled": False, "name": "shared"},
    "serviceAccount": "forebay-ray",
    "scheduler": "",
    "queues": [],
    "priorities": ["high"],
    "podTemplate": {},
}
EAST = Cluster(name="east", context="east", namespace="ml", labels={"region": "eu"})


def parsed(facts: Mapping[str, Any]) -> Cluster:
    return parse_catalogue(json.dumps(facts), "the catalogue", EAST)


def keys(table: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, inner in table.items():
        yield f"{at}{name}"
        if isinstance(inner, Mapping):
            yield from keys(inner, f"{at}{name}.")


def schema_keys(table: Mapping[str, Any], sku: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, inner in table["properties"].items():
        yield f"{at}{name}"
        below = sku if name == "skus" else inner
        if "properties" in below and name != "podTemplate":
            yield from schema_keys(below, sku, f"{at}{name}.")


def test_a_key_is_spelled_alike_in_values_catalogue_and_fleet_file() -> None:
    schema = json.loads(SCHEMA.read_text())
    values = set(schema_keys(schema, schema["definitions"]["sku"])) - OF_THE_CHART
    described = set(keys(DESCRIPTION)) - {"serviceAccount", "nativeSidecars"}  # the chart's own
    assert described <= values
    assert {each for each in values if each.partition(".")[0] in DESCRIPTION} == described
    # One name is one thing: what says how a cluster is reached is in no catalogue.
    assert not set(ACCESS) & set(DESCRIPTION)


def test_every_fact_arrives_and_access_stays() -> None:
    found = parsed(FACTS)
    assert (found.name, found.context, found.labels, found.described_by) == (
        "east",
        "east",
        {"region": "eu"},
        "the catalogue",
    )
    h100 = found.sku["h100"]
    assert (h100.cpu, h100.most_nodes, h100.price("spot"), h100.price("on-demand")) == ("96", 16, 24.5, 24.5)
    assert h100.selector("spot") == {"sku": "h100", "pool": "spot"}
    assert h100.selector("on-demand") == {"sku": "h100", "pool": "reserved"}
    assert h100.markets == ("spot", "on-demand")
    assert found.image == "registry.example/forebay@sha256:" + "0" * 64
    assert (found.pull_secrets, found.service_account, found.priorities) == (("pull",), "forebay-ray", ("high",))
    assert (found.spot_drain, found.cache.size, found.shared_cluster, found.scheduler) == (90, "5Ti", None, "default")
    assert found.hdfs is not None and found.hdfs.renew_every == 4 * 3600
    assert parsed({**FACTS, "cluster": {"enabled": True, "name": "shared"}}).shared_cluster == "shared"
    assert parsed({**FACTS, "hdfs": {"configMap": "", "renewEvery": "4h"}}).hdfs is None


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            None,
            "written by an older chart: its version is 1, and this Forebay reads version 2. Upgrade it: helm upgrade",
        ),
        (3, "written by another chart: its version is 3"),
        ("\x1b[31m", "written by another chart"),
    ],
)
def test_catalogues_of_other_charts_are_refused_by_name(version: object, words: str) -> None:
    facts = {name: value for name, value in FACTS.items() if name != "version"}
    with pytest.raises(InvalidOption) as error:
        parsed(facts if version is None else {**facts, "version": version})
    assert words in str(error.value) and "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"context": "prod"}, "context: this key is unknown"),
        ({"server": "https://evil.example"}, "server: this key is unknown"),
        ({"labels": {"region": "us"}}, "labels: this key is unknown"),
        ({"kind": "manager"}, "kind: this key is unknown"),
        ({"namespace": "kube-system"}, "it describes the namespace 'kube-system', and not ml"),
        ({"skus": {"\x1b[2J": {"cpu": 1, "memory": "1Gi"}}}, "a SKU has at most 30 lower case letters"),
        ({"image": "a b"}, "image: 'a b' is not an image"),
        ({"image": ""}, "image: it is missing"),
        ({"skus": {}}, "skus: it is missing"),
        ({"skus": {"h100": {"memory": "1Ti"}}}, "skus.h100.cpu: it is missing"),
        ({"skus": {"h100": {"cpu": 1, "memory": "1Ti", "max": "many"}}}, "skus.h100.max: "),
        ({"skus": {"h100": {"cpu": 1, "memory": "1Ti", "gpus": -1}}}, "skus.h100.gpus: -1 cannot work"),
        ({"skus": {"h100": {"cpu": 1, "memory": "1Ti", "max": -1}}}, "skus.h100.max: -1 cannot work"),
        ({"skus": {"h100": None}}, "skus.h100.cpu: it is missing"),
        (
            {"skus": {"h100": {"cpu": 1, "memory": "1Ti", "resources": {"example.com/nic": 10**30}}}},
            "is not a whole number of devices",
        ),
        (
            {"skus": {"h100": {"cpu": 1, "memory": "1Ti", "markets": {"spot": {"enabled": "no"}}}}},
            "spot.enabled: it must",
        ),
        (
            {"storage": {"secretEnv": {"FOREBAY_RUN_STORAGE": "a/b"}}},
            "names that begin with FOREBAY_ are set by Forebay",
        ),
        ({"storage": {"secretEnv": {"TOKEN": "../other/key"}}}, "storage.secretEnv.TOKEN: it names no key of a Secret"),
        ({"serviceAccount": "a b"}, "serviceAccount: 'a b' cannot name an object"),
        ({"hdfs": {"configMap": "../x"}}, "hdfs.configMap: '../x' cannot name an object"),
        ({"head": {"tolerations": [{"key": "a", "efect": "b"}]}}, "head.tolerations[0].efect: a toleration has key"),
        ({"podTemplate": {"spec": {"hostPID": True}}}, "podTemplate.spec.hostPID: it may not be patched"),
        ({"cache": {"mode": "claim"}}, "cache.mode: "),
        ({"drain": "40s"}, "drain: it must be a table. Write drain.onDemand and drain.spot."),
        ({"skus": {"h": {"cpu": 1, "memory": "1Gi", "resources": {"nvidia.com/gpu": 1}}}}, "has its own key"),
        (
            {"skus": {"h": {"cpu": 1, "memory": "1Gi", "resources": {"hugepages-1Gi": "512Mi"}}}},
            "whole number of pages",
        ),
        (
            {"skus": {"h": {"cpu": 1, "memory": "1Gi", "resources": {"efa": 1}}}},
            "skus.h.resources.efa: it is no device",
        ),
    ],
)
def test_a_catalogue_that_cannot_be_used_is_refused_with_its_key(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parsed({**FACTS, **change})
    assert fault in str(error.value)
    assert str(error.value).startswith("the catalogue is not a catalogue that can be used")
    assert "\x1b" not in str(error.value)


OLD_FORMS: dict[str, Any] = {
    "drain": '"40s"',
    "ray_version": '"2.60.0"',
    "head_cpu": "4",
    "most_nodes": "4",
    "price_per_hour": "3",
    "spot_price_per_hour": "3",
}


@pytest.mark.parametrize("old", sorted(_OLD))
def test_an_old_key_is_refused_with_the_new_one(old: str) -> None:
    """Old keys stood in an entry, in a SKU, in `cache` or in `hdfs`."""
    new = _OLD[old]
    places = ((), ("skus", "h100"), ("cache",), ("hdfs",))
    tables = {(): DESCRIPTION, ("skus", "h100"): DESCRIPTION["skus"], ("cache",): DESCRIPTION["cache"]}
    tables[("hdfs",)] = DESCRIPTION["hdfs"]
    (place, *_) = [each for each in places if new.partition(".")[0] in tables[each]]
    facts = copy.deepcopy({name: value for name, value in FACTS.items() if name not in ("version", "namespace")})
    table = facts
    for name in place:
        table = table[name]
    table[old] = "x"
    with pytest.raises(InvalidOption, match=f"{old}: this key has another name now. Write {new}."):
        parsed({**facts, "version": 2, "namespace": "ml"})


def test_a_fleet_file_describes_a_cluster_by_the_same_keys_or_not_at_all() -> None:
    """An entry is whole or has access alone, so that no key has two values."""
    access = '[[cluster]]\nname = "east"\ncontext = "east"\nnamespace = "ml"\nlabels = {region = "eu"}\n'
    described = parsed(FACTS)
    whole = access + "".join(
        f"{name} = {toml(value)}\n" for name, value in FACTS.items() if name not in ("version", "namespace")
    )
    (found,) = parse_fleet(whole).cluster
    assert found.described_by == "the fleet file"
    for name in Cluster.__dataclass_fields__:
        assert name == "described_by" or getattr(found, name) == getattr(described, name), name
    (short,) = parse_fleet(access).cluster
    assert not short.sku
    for name in DESCRIPTION:
        if name not in ("image", "skus"):
            with pytest.raises(InvalidOption, match=f"line 6: .*{name}: the values of the chart say it"):
                parse_fleet(f"{access}{name} = {toml(FACTS.get(name, False))}\n")
    with pytest.raises(InvalidOption, match="Did you mean 'context'"):
        parse_fleet(access.replace("context", "contxt"))
    with pytest.raises(InvalidOption, match=r"cluster\[0\].name: it is missing"):
        parse_fleet('[[cluster]]\ncontext = "east"\n')


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)
