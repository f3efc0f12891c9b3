"""Predictions for epochs and runs on Ray nodes, by the models of the data plane and of the control plane."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from studies.control_plane import CountedCoordinator, PlaceCost
from studies.data_plane.peers import PeerCluster, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEpoch:
    """Requests of an epoch whose blocks are on the disks of some nodes.

    `least_at_source` row groups are on no node. `most_at_source` counts one again for each further node that needs it:
    they read it twice if they come to it within seconds. Nodes that ask for filters at the same moment get
    `least_filter_bytes`, and `most_filter_bytes` if they ask one after another.
    """

    filter_requests: int
    least_filter_bytes: int
    most_filter_bytes: int
    block_requests: int
    busiest: int
    in_vain: int
    least_at_source: int
    most_at_source: int


def model_of(needed: Sequence[Collection[int]], held: Sequence[Collection[int]]) -> ModelEpoch:
    """Epoch of nodes that need some blocks each, and hold others."""
    cluster, turns, there = PeerCluster(held), PeerCluster(held, in_turn=True), set[int]().union(*held)
    missing = [sorted(set(blocks) - set(mine)) for blocks, mine in zip(needed, held, strict=True)]
    for each in (cluster, turns):
        each.spread_filters([name for name, blocks in zip(cluster.names, missing, strict=True) if blocks])
    for name, blocks in zip(cluster.names, missing, strict=True):
        for block in blocks:
            if block in there:
                cluster.lookups[name].find(key_of(block), 1)
    traffic = cluster.traffic
    at_source = Counter(block for blocks in missing for block in blocks if block not in there)
    return ModelEpoch(
        filter_requests=traffic.asked_filters.total(),
        least_filter_bytes=traffic.filter_bytes.total(),
        most_filter_bytes=turns.traffic.filter_bytes.total(),
        block_requests=traffic.asked_blocks.total(),
        busiest=max(traffic.asked_blocks.values(), default=0),
        in_vain=traffic.blocks_in_vain,
        least_at_source=len(at_source),
        most_at_source=at_source.total(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What happened in a phase of a run: `before` ranks trained, then a world of `after` began. 0: there is none.

    `looks` are those of the controller, and `idle_s` the seconds in which the driver waited for an event.
    """

    before: int
    after: int
    steps: int
    commits: int
    looks: int
    epochs_before: int
    epochs: int
    idle_s: float = 0.0

    def coordinator_cost(self) -> PlaceCost:
        """Calls at the coordinator, by the model of the control plane."""
        return asyncio.run(self._lead(CountedCoordinator(self.before or self.after, self.epochs_before)))

    async def _lead(self, made: CountedCoordinator) -> PlaceCost:
        if self.before:
            await made.begin(self.before)
        made.cost = PlaceCost()
        await made.wait(self.idle_s)
        await made.train(steps=self.steps, looks=self.looks, commits=self.commits, epochs=self.epochs)
        if self.before and self.after:
            await made.resize(self.before, self.after)
        elif self.after:
            await made.begin(self.after)
        return made.cost
