"""The values in the pages are values of the chart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.unit.fleet.chart.conftest import CHART, render_with

from forebay.fleet.fleet_file import parse_fleet

DOCS = CHART.parents[2] / "docs" / "deployment"
PAGES = sorted(each.name for each in DOCS.glob("*.md") if "```yaml" in each.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_values_of_a_page_install(helms: list[str], page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text()
    blocks = [
        yaml.safe_load(each)
        for found in re.findall(r"```yaml\n(.*?)```|<<'END'\n(.*?)END", text, re.DOTALL)
        for each in found
        if each
    ]
    values = [each for each in blocks if {"clusterName", "networkPolicy"} & each.keys()]
    assert values
    for each in values:
        if "digest" in each.get("image", {}):
            each["image"]["digest"] = "sha256:" + "0" * 64
        assert "forebay-catalogue" in render_with(each, tmp_path)


def test_clusters_of_the_page_on_queues_are_a_fleet() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "queues.md").read_text(), re.DOTALL)
    found = parse_fleet("\n".join(blocks).replace("sha256:...", "sha256:" + "0" * 64))
    assert [(each.name, each.kind, each.scheduler) for each in found.cluster] == [
        ("west", "cluster", "kueue"),
        ("all", "manager", "kueue"),
    ]


def test_fleet_of_the_page_is_a_fleet() -> None:
    text = (DOCS.parent / "submit.md").read_text()
    (block,) = (each for each in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[cluster]]" in each)
    west = parse_fleet(block).named("west")
    assert (west.context, west.namespace, west.sku) == ("west", "ml", {})
