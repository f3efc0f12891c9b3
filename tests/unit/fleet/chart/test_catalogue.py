"""The chart's catalogue is a cluster of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.fleet.chart.conftest import CHART, VALUES, Objects, helm, named, render_with

from forebay.errors import InvalidOption
from forebay.fleet.catalogue import load_catalogue, parse_catalogue
from forebay.fleet.cluster import Cluster


def catalogue(objects: Objects) -> Cluster:
    (found,) = (each for each in objects if each["metadata"]["name"] == "forebay-catalogue")
    return parse_catalogue(found["data"]["catalogue.json"], "the ConfigMap")


@pytest.mark.parametrize("values", VALUES)
def test_values_are_read(render: Callable[..., Objects], values: str) -> None:
    found = catalogue(render(values))
    assert (found.name, found.namespace, found.service_account) == ("here", "ml", "forebay-ray")


def test_every_value_arrives(render: Callable[..., Objects]) -> None:
    found = catalogue(render("gpu-spot"))
    h100 = found.sku["h100"]
    assert (h100.gpus, h100.most_nodes, h100.price("spot"), h100.price("on-demand")) == (8, 16, 8.2, 24.5)
    assert h100.markets == ("spot", "on-demand")
    assert h100.spot_node_selector == {"cloud.google.com/gke-spot": "true"}
    assert h100.tolerations[0]["key"] == "nvidia.com/gpu"
    hdfs = catalogue(render("hdfs")).hdfs
    assert hdfs is not None
    assert (hdfs.principal, hdfs.renew_every) == ("train@CORP", 4 * 3600)
    assert catalogue(render("ephemeral-claim")).cache.storage_class == "local-ssd"
    assert catalogue(render("shared")).shared_cluster == "shared"
    assert catalogue(render("shared")).secret_env == {"AWS_SECRET_ACCESS_KEY": "lake/secret-key"}
    assert catalogue(render("kueue-quota")).scheduler == "kueue"


def test_numbers_are_quantities(helms: list[str]) -> None:
    given = "skus.gpu.cpu=8,skus.gpu.memory=8Gi,skus.gpu.max=2,head.cpu=2,notebook.enabled=true,notebook.cpu=2"
    text = helm("template", "fb", CHART, "--set", given)
    found = parse_catalogue(named(text, "ConfigMap", "forebay-catalogue")["data"]["catalogue.json"], "the ConfigMap")
    assert (found.sku["gpu"].cpu, found.head_cpu) == ("8", "2")
    (container,) = named(text, "Deployment", "forebay-notebook")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "2"


def test_the_charts_own_machines_are_not_beside_others(helms: list[str], tmp_path: Path) -> None:
    """Unless they are named. Jobs without GPUs would go to any node."""
    h100 = {"cpu": 96, "memory": "1Ti", "gpus": 8, "max": 2}
    cases: list[tuple[dict[str, Any], dict[str, tuple[str, int]]]] = [
        ({}, {"cpu": ("4", 4)}),
        ({"cpu": {"max": 9}}, {"cpu": ("4", 9)}),
        ({"h100": h100}, {"h100": ("96", 2)}),
        ({"cpu": None, "h100": h100}, {"h100": ("96", 2)}),
        ({"cpu": {}, "h100": h100}, {"cpu": ("4", 4), "h100": ("96", 2)}),
    ]
    for given, wanted in cases:
        text = render_with({"skus": given}, tmp_path)
        found = parse_catalogue(named(text, "ConfigMap", "forebay-catalogue")["data"]["catalogue.json"], "the values")
        assert {name: (sku.cpu, sku.most_nodes) for name, sku in found.sku.items()} == wanted


@pytest.mark.parametrize(("version", "is_native"), [("1.28.9", False), ("1.29.0", True), ("1.29.1-gke.5", True)])
def test_sidecars_follow_the_version_of_kubernetes(
    helms: list[str], tmp_path: Path, version: str, is_native: bool
) -> None:
    text = render_with({}, tmp_path, "--kube-version", version)
    found = parse_catalogue(named(text, "ConfigMap", "forebay-catalogue")["data"]["catalogue.json"], "the ConfigMap")
    assert found.native_sidecars is is_native


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"name": "a", "imagee": ""}', "[]", "[" * 100_000])
def test_other_texts_are_refused(text: str, tmp_path) -> None:
    path = tmp_path / "catalogue.json"
    path.write_text(text)
    with pytest.raises(InvalidOption, match="(is not a catalogue of a cluster|written by an older chart).*Upgrade it"):
        load_catalogue(path)
