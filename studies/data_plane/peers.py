"""Caches of many nodes, by the lookup of the product, on a clock that the study moves.

All nodes start at the same moment, and none sees an answer of the same moment: the worst case.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_directory import OWN, HeardFilter, PeerDirectory
from forebay.data.cache.node.peer_lookup import PeerLookup, PeerTransport
from forebay.data.transform.block import Block

NAME_BYTES, FILTER_BYTES, MESSAGE_BYTES = 44, 78, 111
"""Pickled: a name that the asking node knows, a filter without its bits, and question and answer without both."""
STEP_S = 0.1
_BLOCK = Block.of({"x": np.zeros(1, np.float32)})


def key_of(block: int) -> str:
    """Key of a row group's block."""
    return hashlib.sha256(b"%d" % block).hexdigest()[:40]


@dataclass
class Traffic:
    """Messages of a cluster: sent by each node, received by each, and their bytes."""

    lists: int = 0
    asked_filters: Counter[str] = field(default_factory=Counter)
    answered_filters: Counter[str] = field(default_factory=Counter)
    filter_bytes: Counter[str] = field(default_factory=Counter)
    asked_blocks: Counter[str] = field(default_factory=Counter)
    blocks_in_vain: int = 0
    connections: set[tuple[str, str]] = field(default_factory=set)


class PeerCluster:
    """Nodes that look blocks up at each other.

    Args:
        held: Blocks on the disk of each node.
        in_turn: An answer has what the node has received until then, and not until the beginning of the step.
        is_listed: The run hands one list of the nodes to all.
    """

    def __init__(self, held: Sequence[Collection[int]], *, in_turn: bool = False, is_listed: bool = False) -> None:
        self.now, self._in_turn = 0.0, in_turn
        self.traffic = Traffic()
        self.names = [f"node-{number:05d}" for number in range(len(held))]
        self.held = {name: {key_of(each) for each in blocks} for name, blocks in zip(self.names, held, strict=True)}
        self.silent: set[str] = set()
        self._own = {name: BloomFilter.of(sorted(keys)) for name, keys in self.held.items()}
        self.directories = {name: PeerDirectory(seed) for seed, name in enumerate(self.names)}
        self.lookups = {
            name: PeerLookup(_Line(self, name), clock=lambda: self.now, directory=directory)
            for name, directory in self.directories.items()
        }
        for name, lookup in self.lookups.items() if is_listed else ():
            lookup.begin_with([each for each in self.names if each != name])
        self._answers: dict[str, dict[str, HeardFilter]] = {}

    def spread_filters(self, active: Collection[str] | None = None) -> float:
        """Let nodes ask until all have fresh filters of all others. Returns the seconds, `STEP_S` for each batch."""
        begun, asking = self.now, list(self.names if active is None else active)
        while asking:
            self._answers = {
                name: self.directories[name].answer(self._own[name], (), 1e9, self.now) for name in self.names
            }
            asking = [name for name in asking if not self._has_all(name)]
            self.now += STEP_S
        return self.now - begun

    def _has_all(self, name: str) -> bool:
        """Let a node send its next requests, if they are due. Returns whether it has all filters."""
        lookup, directory = self.lookups[name], self.directories[name]
        if not directory.is_stale(self.now):
            return not directory.missing(self.now)
        if directory.needs_list(self.now):
            directory.set_peers(_Line(self, name).peer_names(), self.now)
        if lookup._ask_some():  # noqa: SLF001 - one batch, so that all nodes ask at once
            return False
        directory.end_round(self.now)
        return not directory.missing(self.now)

    def keep(self, name: str, block: int) -> None:
        """Let a node store a block."""
        self.held[name].add(key_of(block))
        self._own[name] = BloomFilter.of(sorted(self.held[name]))

    def transport(self, name: str) -> PeerTransport:
        """Transport of a node, which counts."""
        return _Line(self, name)

    def answer(self, name: str, known: Collection[str], within_s: float) -> dict[str, HeardFilter]:
        """Answer of a node, by what it had received at the beginning of this step."""
        if self._in_turn:
            return self.directories[name].answer(self._own[name], known, within_s, self.now)
        return {
            each: found
            for each, found in self._answers[name].items()
            if each == OWN or (each not in known and found.age_s <= within_s)
        }


class _Line:
    """Transport of one node, that counts."""

    def __init__(self, cluster: PeerCluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    def peer_names(self) -> list[str]:
        self._cluster.traffic.lists += 1
        return [name for name in self._cluster.names if name != self._name]

    def ask_filters(
        self,
        names: Collection[str],
        known: Collection[str],
        within_s: float,
        deadline_s: float,  # noqa: ARG002 - of the protocol
    ) -> Mapping[str, Mapping[str, HeardFilter]]:
        traffic, answers = self._cluster.traffic, {}
        for name in names:
            traffic.connections.add((self._name, name))
            traffic.asked_filters[self._name] += 1
            if name in self._cluster.silent:
                continue
            traffic.answered_filters[name] += 1
            answer = self._cluster.answer(name, known, within_s)
            sent = sum(FILTER_BYTES + len(each.bloom_filter.bits) for each in answer.values())
            answer.pop(self._name, None)
            traffic.filter_bytes[self._name] += MESSAGE_BYTES + sent + NAME_BYTES * len(known)
            answers[name] = answer
        return answers

    def fetch_block(self, name: str, key: str, deadline_s: float) -> Block | None:  # noqa: ARG002 - of the protocol
        traffic = self._cluster.traffic
        traffic.connections.add((self._name, name))
        traffic.asked_blocks[name] += 1
        if key in self._cluster.held[name]:
            return _BLOCK
        traffic.blocks_in_vain += 1
        return None
