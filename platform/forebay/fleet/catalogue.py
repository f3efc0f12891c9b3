"""Description of a cluster, in the keys of the chart's values.

The chart publishes it as the ConfigMap `forebay-catalogue`. A fleet file describes a cluster without the chart by the
same keys. A description never says how a cluster is reached, or what it is called: only the fleet file does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.cluster import CacheVolume, Cluster, Hdfs, Sku
from forebay.fleet.spec.fields import fault
from forebay.runtime.formatting import did_you_mean, printable

CATALOGUE = "forebay-catalogue"
"""Name of the chart's ConfigMap. Its key is `catalogue.json`."""
VERSION = 2
"""Version of the keys. Version 1 was written by charts up to 0.1, and has none."""
_UPGRADE = "Upgrade it: helm upgrade RELEASE deploy/helm/forebay."

T = TypeVar("T")
Keys: TypeAlias = Mapping[str, Any]
Path_: TypeAlias = tuple[str | int, ...]

SKU: Keys = {
    "cpu": "cpu",
    "memory": "memory",
    "gpus": "gpus",
    "gpuResource": "gpu_resource",
    "accelerator": "accelerator",
    "max": "most_nodes",
    "pricePerHour": "price_per_hour",
    "spotPricePerHour": "spot_price_per_hour",
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "resources": "resources",
    "podTemplate": "pod_template",
    "markets": {
        "onDemand": {"enabled": "", "nodeSelector": "on_demand_node_selector", "tolerations": "on_demand_tolerations"},
        "spot": {"enabled": "", "nodeSelector": "spot_node_selector", "tolerations": "spot_tolerations"},
    },
}
CACHE: Keys = {"mode": "mode", "path": "path", "sizeLimit": "size", "storageClass": "storage_class"}
HDFS: Keys = {
    "configMap": "config_map",
    "keytabSecret": "keytab_secret",
    "principal": "principal",
    "renewEvery": "renew_every",
}
DESCRIPTION: Keys = {
    "image": {"repository": "", "digest": "", "tag": "", "pullSecrets": "pull_secrets"},
    "ray": {"version": "ray_version"},
    "head": {
        "cpu": "head_cpu",
        "memory": "head_memory",
        "nodeSelector": "head_node_selector",
        "tolerations": "head_tolerations",
        "podTemplate": "head_pod_template",
    },
    "skus": SKU,
    "drain": {"onDemand": "drain", "spot": "spot_drain"},
    "cache": CACHE,
    "storage": {"secretEnv": "secret_env"},
    "hdfs": HDFS,
    "cluster": {"enabled": "", "name": "shared_cluster"},
    "serviceAccount": "service_account",
    "nativeSidecars": "native_sidecars",
    "scheduler": "scheduler",
    "queues": "queues",
    "priorities": "priorities",
    "podTemplate": "pod_template",
}
"""Keys of a description, with the fields of `Cluster` that they set. An empty text: it is read together with others."""
_OLD: Mapping[str, str] = {
    "sku": "skus",
    "ray_version": "ray.version",
    "shared_cluster": "cluster.name",
    "service_account": "serviceAccount",
    "pull_secrets": "image.pullSecrets",
    "head_cpu": "head.cpu",
    "head_memory": "head.memory",
    "head_node_selector": "head.nodeSelector",
    "head_tolerations": "head.tolerations",
    "spot_drain": "drain.spot",
    "secret_env": "storage.secretEnv",
    "gpu_resource": "gpuResource",
    "most_nodes": "max",
    "price_per_hour": "pricePerHour",
    "spot_price_per_hour": "spotPricePerHour",
    "node_selector": "nodeSelector",
    "spot_node_selector": "markets.spot.nodeSelector",
    "spot_tolerations": "markets.spot.tolerations",
    "size": "sizeLimit",
    "storage_class": "storageClass",
    "config_map": "configMap",
    "keytab_secret": "keytabSecret",
    "renew_every": "renewEvery",
}
"""Keys that fleet files and catalogues had before they took the names of the values."""


def described(cluster: Cluster, facts: Mapping[str, Any], by: str) -> Cluster:
    """Return a cluster with its description.

    `by` is where the description was read. Raises `InvalidJobSpec` with the path of the first fault, in the keys of
    `facts`.
    """
    _refuse_unknown(facts, DESCRIPTION, ())
    for name in ("image", "skus"):
        if not facts.get(name):
            raise fault("it is missing. Write it.", name)
    try:
        return dataclasses.replace(cluster, described_by=by, **_fields(facts))
    except InvalidJobSpec as error:
        path = _path_of(tuple(error.facts.get("path", ())))  # type: ignore[arg-type]
        raise fault(str(error.facts.get("fault", error)), *path) from None


def parse_catalogue(text: str, where: str, cluster: Cluster | None = None) -> Cluster:
    """Return a cluster as its catalogue describes it.

    `cluster` says what it is called, and how it is reached. Raises `InvalidOption`, which names `where`.
    """
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not a catalogue of a cluster ({error}). {_UPGRADE}") from None
    if not isinstance(facts, dict):
        raise InvalidOption(f"{where} is not a catalogue of a cluster: it is no table. {_UPGRADE}")
    version = facts.pop("version", 1)
    if version != VERSION:
        is_old = isinstance(version, int) and version < VERSION
        advice = _UPGRADE if is_old else "Install the version of Forebay here that the cluster has."
        raise InvalidOption(
            f"{where} was written by {'an older' if is_old else 'another'} chart: its version is "
            f"{printable(str(version))[:20]}, and this Forebay reads version {VERSION}. {advice}"
        )
    name, namespace = str(facts.pop("clusterName", "here")), str(facts.pop("namespace", "default"))
    try:
        known = cluster or Cluster(name=name, namespace=namespace)
        if known.namespace != namespace:
            raise InvalidOption(f"it describes the namespace {namespace!r}, and not {known.namespace}.")
        return described(known, facts, where)
    except InvalidOption as error:
        raise InvalidOption(
            f"{where} is not a catalogue that can be used: {printable(str(error))} Correct the values of the chart."
        ) from None


def load_catalogue(path: str | Path) -> Cluster:
    """Cluster of a catalogue in a file. Raises `InvalidOption`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path} cannot be read ({error}). Give the catalogue.json of the chart.") from error
    return parse_catalogue(text, str(path))


def _fields(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Cluster` from a description."""
    found = _mapped(facts, {name: keys for name, keys in DESCRIPTION.items() if name not in ("skus", "cache", "hdfs")})
    found["image"] = _image(facts["image"])
    found["sku"] = {name: _sku(each, name) for name, each in _table(facts["skus"], ("skus",)).items()}
    if "cache" in facts:
        found["cache"] = _made(CacheVolume, _mapped(facts["cache"], CACHE, ("cache",)), "cache")
    if _table(facts.get("hdfs", {}), ("hdfs",)).get("configMap"):
        found["hdfs"] = _made(Hdfs, _mapped(facts["hdfs"], HDFS, ("hdfs",)), "hdfs")
    if not _table(facts.get("cluster", {}), ("cluster",)).get("enabled"):
        found.pop("shared_cluster", None)
    return found


def _sku(facts: Any, name: str) -> Sku:
    at: Path_ = ("skus", name)
    facts = _table(facts, at)
    fields = _mapped(facts, SKU, at)
    for price in ("price_per_hour", "spot_price_per_hour"):
        if fields.get(price) == 0:  # unknown
            del fields[price]
    markets = _table(facts.get("markets", {}), (*at, "markets"))
    fields["markets"] = tuple(
        market
        for market, key, is_usual in (("spot", "spot", False), ("on-demand", "onDemand", True))
        if _is_enabled(markets.get(key, is_usual), (*at, "markets", key))
    )
    for missing in ("cpu", "memory"):
        if missing not in fields:
            raise fault("it is missing. Write it.", "sku", name, missing)
    return _made(Sku, fields, "sku", name)


def _is_enabled(market: Any, at: Path_) -> bool:
    """Whether a market is used: where it has a table that does not say otherwise."""
    found = True if market is True else market is not False and _table(market, at).get("enabled", True)
    if not isinstance(found, bool):
        raise fault("it must be true or false.", *at, "enabled")
    return found


def _image(facts: Any) -> str:
    if isinstance(facts, str):
        return facts
    repository, digest, tag = (str(facts.get(name) or "") for name in ("repository", "digest", "tag"))
    return f"{repository}@{digest}" if digest else f"{repository}:{tag}" if tag else repository


def _made(kind: Callable[..., T], fields: Mapping[str, Any], *at: str) -> T:
    try:
        return kind(**fields)
    except InvalidJobSpec as error:
        raise fault(str(error.facts.get("fault", error)), *at, *error.facts.get("path", ())) from None  # type: ignore[misc]


def _mapped(facts: Any, keys: Keys, at: Path_ = ()) -> dict[str, Any]:
    """Return the fields of one table. Empty texts and nulls are as good as no key."""
    found: dict[str, Any] = {}
    for name, value in _table(facts, at).items():
        inner = keys.get(name)
        if value is None or value == "" or not inner:
            continue
        if isinstance(inner, str):
            found[inner] = value
        elif not (name == "image" and isinstance(value, str)):
            found |= _mapped(value, inner, (*at, name))
    return found


def _table(facts: Any, at: Path_) -> Mapping[str, Any]:
    if facts is None:
        return {}
    if not isinstance(facts, Mapping):
        raise fault("it must be a table.", *at)
    return facts


def _refuse_unknown(facts: Any, keys: Keys, at: Path_) -> None:
    """Raise `InvalidJobSpec` for a key that is not one, with the one to write."""
    for name, value in _table(facts, at).items():
        if name not in keys:
            raise fault(advice(name, keys), *at, printable(str(name)))
        inner = keys[name]
        if not isinstance(inner, Mapping) or (name == "image" and isinstance(value, str)):
            continue
        if name == "skus":
            for sku, each in _table(value, (*at, name)).items():
                _refuse_unknown(each, inner, (*at, name, printable(str(sku))))
        elif name == "drain" and not isinstance(value, Mapping):
            raise fault("it must be a table. Write drain.onDemand and drain.spot.", *at, name)
        elif name == "markets" and not isinstance(value, Mapping):
            raise fault("it must be a table. Write markets.onDemand.enabled and markets.spot.enabled.", *at, name)
        else:
            _refuse_unknown(value, inner, (*at, name))


def advice(name: str, keys: Collection[str]) -> str:
    """Return what to write instead of an unknown key."""
    if name in _OLD and _OLD[name].partition(".")[0] in keys:
        return f"this key has another name now. Write {_OLD[name]}."
    hint = did_you_mean(str(name), keys, cutoff=0.5) or f" Known are {', '.join(sorted(keys))}."
    return f"this key is unknown.{hint}"


def _path_of(path: Path_) -> Path_:
    """Return the keys of a description for the path of a field.

    >>> _path_of(("sku", "h100", "spot_tolerations", 0))
    ('skus', 'h100', 'markets', 'spot', 'tolerations', 0)
    """
    match path:
        case ("sku", name, *rest):
            return ("skus", name, *_inside(SKU, tuple(rest)))
        case ("cache", *rest):
            return ("cache", *_inside(CACHE, tuple(rest)))
        case ("hdfs", *rest):
            return ("hdfs", *_inside(HDFS, tuple(rest)))
    return _inside(DESCRIPTION, path)


def _inside(keys: Keys, path: Path_) -> Path_:
    if not path:
        return ()
    found = _find(keys, path[0])
    return path if found is None else (*found, *path[1:])


def _find(keys: Keys, name: str | int) -> tuple[str, ...] | None:
    for key, inner in keys.items():
        if inner == name:
            return (key,)
        if isinstance(inner, Mapping) and key != "skus" and (found := _find(inner, name)) is not None:
            return (key, *found)
    return None
