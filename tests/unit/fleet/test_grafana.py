"""The dashboard can be imported, and queries exported metrics.

No panel hides another.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from forebay.runtime.metrics import GAUGES, METRICS, TAGS, exported_name

FILE = Path(__file__).parents[3] / "deploy" / "grafana" / "forebay.json"
EXPORTED = {f"ray_{exported_name(name)}" for name in (*METRICS, *GAUGES)}
GRID_WIDTH = 24
ASKED = {
    "Time waiting for data": {"wait_s"},
    "Rows per second": {"rows"},
    "Where the time goes, beside training": {
        "remote_read_s", "peer_s", "decode_s", "transform_s", "write_s", "map_s", "plan_s", "gather_s",
    },
    "Where the time goes, holding training up": {"wait_s", "copy_s"},
    "Bytes per second, by where blocks come from": {"hit_bytes", "peer_bytes", "bypass_bytes", "source_bytes"},
    "Cache used, and its quota": {"cache_used_bytes", "cache_quota_bytes"},
    "Retries and quarantined blocks": {"retries", "quarantined"},
    "Work of the nodes' caches": {"stores", "bypasses", "peer_hits"},
}  # fmt: skip


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return shown + [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]


def test_panels_ask_for_what_they_say(dashboard: dict[str, Any]) -> None:
    asked = {
        panel["title"]: {name for target in panel["targets"] for name in re.findall(r"\bray_\w+", target["expr"])}
        for panel in dashboard["panels"]
    }
    assert asked == {title: {f"ray_{exported_name(name)}" for name in names} for title, names in ASKED.items()}


def test_every_expression_uses_exported_names_and_labels(dashboard: dict[str, Any]) -> None:
    functions = {"sum", "avg", "max", "rate", "increase", "by", "label_values"}
    for expression in expressions(dashboard):
        bare = re.sub(r'"[^"]*"|\[\$__rate_interval\]', "", expression)
        words = set(re.findall(r"[A-Za-z_]\w*", bare))
        assert words & EXPORTED, expression
        assert words <= EXPORTED | functions | TAGS.keys(), expression
        assert bare.count("(") == bare.count(")") and bare.count("{") == bare.count("}")


def test_roles_are_never_mixed(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert len(set(re.findall(r'role="(\w+)"', target["expr"]))) == 1, target["expr"]


def test_panels_have_their_own_number_and_place(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= GRID_WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_targets_and_variables_are_complete(dashboard: dict[str, Any]) -> None:
    names = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for expression in expressions(dashboard):
        assert set(re.findall(r"\$(\w+)", expression)) <= names
    for panel in dashboard["panels"]:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        assert all(target["legendFormat"] for target in panel["targets"])
