"""Values and fleet files of the pages, and the jobs that they give.

Helm alone renders the chart here. `tests/k8s/test_pages.py` goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.fleet.chart.conftest import CHART, VALUES, Objects, named, render_with
from tests.unit.fleet.chart.pages import CLUSTERS, DIGEST, DOCS, ClusterPage, compared

import forebay as fb
from forebay.fleet.catalogue import parse_catalogue
from forebay.fleet.federation.dry_run import dry_run
from forebay.fleet.fleet_file import Fleet, parse_fleet
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.render import render as ray_job

PAGES = sorted(each.name for each in DOCS.glob("*.md") if "```yaml" in each.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_values_of_a_page_install(helms: list[str], page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text().replace("sha256:...", DIGEST)
    blocks = [
        yaml.safe_load(each)
        for found in re.findall(r"```yaml\n(.*?)```|<<'END'\n(.*?)END", text, re.DOTALL)
        for each in found
        if each
    ]
    values = [each for each in blocks if {"clusterName", "networkPolicy"} & each.keys()]
    assert values
    for each in values:
        assert "forebay-catalogue" in render_with(each, tmp_path)


@pytest.mark.parametrize("name", CLUSTERS)
def test_values_of_a_page_reach_the_jobs_of_its_fleet_file(helms: list[str], name: str, tmp_path: Path) -> None:
    """The entry has access alone: all that a job gets comes from the values."""
    page = ClusterPage(name)
    _, sku = page.sku()
    (entry,) = [each for each in page.fleet.cluster if each.kind == "cluster"]
    text = named(render_with(page.values, tmp_path), "ConfigMap", "forebay-catalogue")["data"]["catalogue.json"]
    cluster = parse_catalogue(text, "the catalogue", entry)
    (plan,) = dry_run(page.job(spot="prefer"), Fleet(cluster=(cluster,)))
    assert plan.ray_job is not None, plan
    groups = plan.ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    for group in groups:
        found, wanted = compared(group, page.values, sku)
        assert found == wanted
    assert {"account", "cache", "image"} <= {fact.what for fact in plan.pods if fact.by == "the catalogue"}


@pytest.mark.parametrize("values", VALUES)
def test_every_value_reaches_the_jobs(render: Callable[..., Objects], values: str) -> None:
    given = yaml.safe_load((CHART / "ci" / f"{values}-values.yaml").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    merged = {**given, "image": {**defaults["image"], "tag": version, **given.get("image", {})}}
    (catalogue,) = (each for each in render(values) if each["metadata"]["name"] == "forebay-catalogue")
    cluster = parse_catalogue(catalogue["data"]["catalogue.json"], "the catalogue")
    for name, sku in (given.get("skus") or {"cpu": {}}).items():
        for market in cluster.sku[name].markets:
            shape = {"cpu": "1", "memory": "1Gi", "gpus": sku.get("gpus", 0)}
            workers = fb.fleet.TaskWorkers(min=1, max=2, sku=(name,), spot="prefer", **shape)  # type: ignore[arg-type]
            task = fb.fleet.Task(command=("true",), workers=workers)
            spec = fb.JobSpec(name="a", storage="s3://a/b", task=(task,))
            job = ray_job(PlacedAttempt(spec=spec, task=task, number=1, sku=name, market=market), cluster)
            for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
                found, wanted = compared(group, merged, sku)
                assert found == wanted


def test_clusters_of_the_page_on_queues_are_a_fleet() -> None:
    page = ClusterPage("queues")
    assert [(each.name, each.kind) for each in page.fleet.cluster] == [("west", "cluster"), ("all", "manager")]


def test_a_cluster_without_the_chart_is_described_whole() -> None:
    text = (DOCS / "chart.md").read_text().replace("sha256:...", DIGEST)
    west, lab = (parse_fleet(each).cluster[0] for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    assert not west.sku
    assert (lab.service_account, lab.drain, list(lab.sku)) == ("train", 40, ["a100"])


def test_fleet_of_the_page_is_a_fleet() -> None:
    text = (DOCS.parent / "submit.md").read_text()
    block = next(each for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[cluster]]" in each)
    west = parse_fleet(block).named("west")
    assert (west.context, west.namespace, west.sku) == ("west", "ml", {})
