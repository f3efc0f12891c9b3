"""Blocks of a first epoch and of a restart, by the order of a real plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from studies.data_plane.first_batch import MOST_OPEN, StartCounts, StartSimulation, needs_of
from studies.data_plane.lake import GROUP_BYTES, GROUPS_PER_FILE, lake
from studies.data_plane.peers import PeerCluster, key_of

from forebay.data.plan.plan import Plan, build_plan
from forebay.world import World

SAMPLED = 20
"""Of so many blocks of a node, one is looked up."""
AHEAD, BATCH_OF_NODE = 100, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Reads of a restart, after half of the nodes have lost their caches and the ranks have moved.

    Attributes:
        blocks: Row groups.
        needed: Blocks that nodes need, over all nodes: some are shared by two lanes.
        at_source: Row groups that no node has.
        twice: Of them, those that two nodes need: both read one if they come to it within seconds.
        read_again: Further ones that are read from the source, although a node has them.
        files: Files that a node reads from the source, over all nodes. Each is a footer, and 4 calls of a NameNode.
        lookups: Lookups that were made.
        in_vain: Requests to a node that lacks the block.
        busiest: Blocks that the busiest node sends.
        mean: Blocks that a node with a cache sends.
        filters: Requests for filters at the busiest node, and the bytes of filters that one node receives.
    """

    blocks: int
    needed: int
    at_source: int
    twice: int
    read_again: int
    files: int
    lookups: int
    in_vain: int
    busiest: int
    mean: float
    filters: int
    filter_bytes: int
    filters_s: float

    def __str__(self) -> str:
        requests, read = 3 * self.at_source + self.files, self.at_source * GROUP_BYTES
        return (
            f"{self.at_source:,} of {self.blocks:,} row groups at the source ({self.twice:,} of them may be read by two"
            f" nodes; {self.read_again:,} although a node has them): {requests:,} requests, {read / 1e12:.2f} TB, "
            f"{4 * self.files:,} calls of a NameNode; the busiest peer sends {self.busiest:,} blocks (mean "
            f"{self.mean:,.0f}) and answers {self.filters} requests for filters; a node receives "
            f"{self.filter_bytes / 1e6:.2f} MB of filters in {self.filters_s:.1f} s; {self.in_vain} of "
            f"{self.lookups:,} look-ups in vain"
        )


def blocks_of(plan: Plan, nodes: int) -> list[list[int]]:
    """Blocks that each node needs in an epoch, with one rank for all its GPUs."""
    return [
        sorted(
            {block for lane in plan.owned_lanes(World(rank=rank, size=nodes)) for block, _, _ in plan.spans(0, lane)}
        )
        for rank in range(nodes)
    ]


def after_loss(needed: Sequence[Sequence[int]], kept: float = 0.5) -> tuple[list[Sequence[int]], list[int]]:
    """Blocks on the disk of each node after a share of them was lost, and the new rank of each node."""
    rng, nodes = np.random.default_rng(2), len(needed)
    lost = set(rng.permutation(nodes)[: nodes - int(kept * nodes + 0.5)].tolist())
    held: list[Sequence[int]] = [[] if node in lost else needed[node] for node in range(nodes)]
    return held, rng.permutation(nodes).tolist()


def restart(nodes: int, groups: int, lanes: int) -> Restart:
    """Look up a sample of the blocks of each node, by the product's code."""
    needed = blocks_of(build_plan(lake(groups), seed=1, lanes=lanes), nodes)
    held, rank_of = after_loss(needed)
    cluster = PeerCluster(held)
    filters_s = cluster.spread_filters()
    there = {block for blocks in held for block in blocks}
    files, wanted = 0, Counter[int]()
    lookups = read_again = 0
    for node, name in enumerate(cluster.names):
        mine = set(held[node])
        missing = [block for block in needed[rank_of[node]] if block not in mine]
        at_source = [block for block in missing if block not in there]
        files += len({block // GROUPS_PER_FILE for block in at_source})
        wanted.update(at_source)
        for block in missing[::SAMPLED]:
            lookups += 1
            found = cluster.lookups[name].find(key_of(block), 1)
            read_again += found is None and block in there
    asked, traffic = cluster.traffic.asked_blocks, cluster.traffic
    return Restart(
        blocks=groups,
        needed=sum(map(len, needed)),
        at_source=len(wanted),
        twice=sum(count > 1 for count in wanted.values()),
        read_again=read_again * SAMPLED,
        files=files,
        lookups=lookups,
        in_vain=traffic.blocks_in_vain,
        busiest=max(asked.values()) * SAMPLED,
        mean=asked.total() * SAMPLED / sum(map(bool, held)),
        filters=max(traffic.answered_filters.values()),
        filter_bytes=max(traffic.filter_bytes.values()),
        filters_s=filters_s,
    )


class FirstBlocks:
    """First blocks of each node after such a loss, on a simulated clock."""

    def __init__(self, nodes: int, groups: int, lanes: int) -> None:
        plan = build_plan(lake(groups), seed=1, lanes=lanes)
        self._needed = blocks_of(plan, nodes)
        self._needs = [needs_of(plan, rank, nodes, AHEAD, BATCH_OF_NODE * nodes) for rank in range(nodes)]

    def run(self, *, kept: float, reads: int, most_open: int = MOST_OPEN) -> StartCounts:
        """Start with a share of the caches, and a number of reads at once."""
        held, rank_of = after_loss(self._needed, kept)
        needs = [self._needs[rank] for rank in rank_of]
        return StartSimulation(needs, [set(blocks) for blocks in held], reads=reads, most_open=most_open).run()
