"""Choice of data nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from forebay.data.cache.data_nodes import transport
from forebay.data.cache.data_nodes.transport import RayDataNodes, chosen_nodes
from forebay.ray_cluster import nodes as ray_cluster


def test_a_node_uses_at_most_32_data_nodes_and_all_are_used_about_equally() -> None:
    data_nodes = [f"data-{number}" for number in range(100)]
    used = Counter(node for number in range(500) for node in chosen_nodes(f"node-{number}", data_nodes))
    assert used.total() == 500 * 32 and len(used) == 100
    assert max(used.values()) < 1.4 * 160 and min(used.values()) > 0.6 * 160


def test_few_are_all_used_and_one_that_leaves_moves_its_share() -> None:
    assert sorted(chosen_nodes("a", ["c", "a", "b"])) == ["b", "c"]
    data_nodes = [f"data-{number}" for number in range(100)]
    before = chosen_nodes("a", data_nodes)
    after = chosen_nodes("a", [node for node in data_nodes if node != before[3]])
    assert [node for node in before if node != before[3]] == after[:31]


@pytest.mark.parametrize("num_nodes", [3, 50, 1000])
def test_all_nodes_together_list_the_cluster_ten_times_a_second(
    num_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, now = Counter[str](), 0.0
    listed = [{"NodeID": f"node-{number}", "Alive": True, "Resources": {"GPU": 8.0}} for number in range(num_nodes)]

    def nodes() -> list[dict[str, object]]:
        lists["nodes"] += 1
        return listed

    monkeypatch.setattr(transport.ray, "nodes", nodes)
    monkeypatch.setattr(transport.time, "monotonic", lambda: now)
    monkeypatch.setattr(ray_cluster, "draining_nodes", dict)
    line, seconds = RayDataNodes("node-0"), 400.0
    while now < seconds:
        assert line.cores("cpu_only") == {}
        now += 0.5
    assert lists["nodes"] * num_nodes <= 10 * seconds + num_nodes
