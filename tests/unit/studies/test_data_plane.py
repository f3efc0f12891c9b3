"""Laws of the data plane at many nodes: they count messages and bytes, not time."""

from __future__ import annotations

import numpy as np
import pytest
from studies.data_plane.peers import FILTER_BYTES, STEP_S, PeerCluster, Traffic, key_of
from studies.data_plane.restart import FirstBlocks, restart

BLOCKS = 20


def cluster(nodes: int) -> PeerCluster:
    return PeerCluster([range(number * BLOCKS, (number + 1) * BLOCKS) for number in range(nodes)])


@pytest.mark.parametrize("nodes", [16, 256])
def test_nodes_learn_what_all_hold_and_do_not_ask_all(nodes: int) -> None:
    made = cluster(nodes)
    made.spread_filters()
    assert all(len(each.fresh(made.now)) == nodes - 1 for each in made.directories.values())
    traffic = made.traffic
    most = min(nodes - 1, 8 * np.log2(nodes))
    assert max(traffic.asked_filters.values()) <= most, "requests of a node"
    assert max(traffic.answered_filters.values()) <= most, "requests to the busiest one"
    assert traffic.lists == nodes, "the list of actors, once a node"
    table = nodes * (FILTER_BYTES + 4 * BLOCKS)
    assert max(traffic.filter_bytes.values()) < 10 * table
    made.traffic = Traffic()
    made.spread_filters()
    assert not made.traffic.asked_filters, "all are fresh"


def test_one_node_that_misses_blocks_among_many_that_do_not_asks_each_once() -> None:
    made = cluster(128)
    made.spread_filters([made.names[5]])
    assert dict(made.traffic.asked_filters) == {made.names[5]: 127}
    assert set(made.traffic.answered_filters.values()) == {1}


@pytest.mark.parametrize("nodes", [66, 256])
def test_nodes_of_a_run_share_one_list_and_renew_it_in_turn(nodes: int) -> None:
    """When each listed the cluster at its start, Ray's GCS sent n lists of n nodes at once."""
    made = PeerCluster([range(number * BLOCKS, (number + 1) * BLOCKS) for number in range(nodes)], is_listed=True)
    seconds, lists = made.spread_filters(), [made.traffic.lists]
    assert all(len(each.fresh(made.now)) == nodes - 1 for each in made.directories.values())
    assert lists[0] <= 30 * seconds + 5, "10 a second and chance, for a start of n nodes"
    assert max(made.traffic.answered_filters.values()) <= 8 * np.log2(nodes)
    while made.now < 0.1 * nodes + 5.0:
        made.now += 2.0
        before = made.traffic.lists
        made.spread_filters()
        lists.append(made.traffic.lists - before)
    assert sum(lists) >= nodes, "each has listed it once"
    assert max(lists) <= nodes / 2, "not all at once"


def test_few_nodes_list_the_cluster_themselves() -> None:
    made = PeerCluster([range(number) for number in range(16)], is_listed=True)
    made.spread_filters()
    assert made.traffic.lists == 16


def test_a_node_that_asks_alone_takes_few_batches() -> None:
    """Each batch looks at all peers: with 8 in each, the 512 batches among 4,096 nodes took 2 s of CPU."""
    made = cluster(512)
    made.spread_filters([made.names[5]])
    assert made.traffic.asked_filters.total() == 511
    assert made.now <= STEP_S * (np.log2(512) + 3), "a step a batch"


@pytest.mark.parametrize("active", [2, 13, 64])
def test_some_nodes_that_miss_blocks_learn_what_all_hold_and_share_the_requests(active: int) -> None:
    made = cluster(128)
    asking = made.names[:: 128 // active][:active]
    assert made.spread_filters(asking) < 2.0, "in one round"
    assert all(len(made.directories[name].fresh(made.now)) == 127 for name in asking)
    assert max(made.traffic.answered_filters.values()) <= min(active, 8 * np.log2(128))
    assert made.traffic.asked_filters.total() < active * 127


def test_a_block_is_asked_for_once_and_at_its_holder() -> None:
    made = cluster(128)
    made.spread_filters()
    blocks = np.random.default_rng(1).integers(BLOCKS, 128 * BLOCKS, 200).tolist()
    assert all(made.lookups[made.names[0]].find(key_of(block), 1) for block in blocks)
    missing = range(128 * BLOCKS, 128 * BLOCKS + 200)
    assert not any(made.lookups[made.names[0]].find(key_of(block), 1) for block in missing)
    assert made.traffic.asked_blocks.total() <= len(blocks) + 1 and made.traffic.blocks_in_vain <= 1


def test_nodes_that_are_silent_are_asked_once_and_others_are_learned() -> None:
    made = cluster(64)
    made.silent = set(made.names[::8])
    made.spread_filters()
    for name in made.names[1:8]:
        assert len(made.directories[name].fresh(made.now)) == 64 - 8 - 1
    assert max(made.traffic.asked_filters.values()) < 63


@pytest.mark.parametrize("nodes", [16, 64])
@pytest.mark.parametrize(("kept", "reads"), [(1.0, 64), (0.5, 8), (0.5, 64)])
def test_after_a_restart_no_block_that_a_peer_has_is_read_from_the_source(nodes: int, kept: float, reads: int) -> None:
    counts = FirstBlocks(nodes, 100 * nodes, 256).run(kept=kept, reads=reads)
    assert counts.read_again == counts.busy == 0
    assert counts.from_peers > 0 and (kept == 1.0) == (counts.source_blocks == 0)


def test_a_restart_reads_each_row_group_once_and_spreads_what_peers_send() -> None:
    found = restart(64, 6400, 512)
    assert found.read_again == 0 and found.in_vain <= 2
    assert found.at_source + found.twice <= 0.55 * found.blocks + 64
    assert found.busiest <= 1.5 * found.mean
