"""The caches of the other nodes over Ray: found by name, asked as actors, blocks through the object store.

Checked with Ray 2.60.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayError

from forebay.cache.node.bloom_filter import BloomFilter
from forebay.cache.node.peer_lookup import PeerSilent
from forebay.transform.block import Block

Actor: TypeAlias = Any

NODE_DIGITS = 12
"""So much of a node's id is part of its cache's name, right after the prefix."""


class RayPeerTransport:
    """A `PeerLine` for the cache of `node_id`, to be used outside of an event loop. Other caches of the same node are
    no peers: they were given another directory on purpose.
    """

    def __init__(self, *, namespace: str, prefix: str, node_id: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._here = node_id[:NODE_DIGITS]
        self._actors: dict[str, Actor] = {}

    def names(self) -> list[str]:
        """The caches of all other living nodes. Raises `PeerSilent`."""
        try:
            found = ray.util.list_named_actors(all_namespaces=True)
            # The actor of a dead node may keep its name for a while.
            others = {node["NodeID"][:NODE_DIGITS] for node in ray.nodes() if node["Alive"]} - {self._here}
        except (RayError, RuntimeError) as error:
            raise PeerSilent(f"the caches of the cluster cannot be listed: {error}") from error
        known = [actor["name"] for actor in found if actor["namespace"] == self._namespace]
        names = [name for name in known if name.startswith(self._prefix) and self._node_of(name) in others]
        for gone in self._actors.keys() - set(names):
            self._actors.pop(gone, None)
        return names

    def summaries(self, names: Collection[str], deadline_s: float) -> Mapping[str, BloomFilter]:
        """What each holds, without those that do not answer in time."""
        asked = {}
        for name in names:
            try:
                asked[self._actor(name).summary.remote()] = name
            except (RayError, ValueError):
                self._actors.pop(name, None)
        if not asked:
            return {}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=deadline_s)
        answers = {}
        for reply in ready:
            try:
                answers[asked[reply]] = ray.get(reply, timeout=deadline_s)
            except RayError:
                self._actors.pop(asked[reply], None)
        return answers

    def block(self, name: str, key: str, deadline_s: float) -> Block | None:
        """The block from `name`, or None if it is not there. Raises `PeerSilent`."""
        give_up = time.monotonic() + deadline_s
        try:
            reply = ray.get(self._actor(name).hand_out.remote(key), timeout=deadline_s)
            if reply is None:
                return None
            rows, arrays = ray.get(reply, timeout=max(give_up - time.monotonic(), 0.001))
        except (RayError, ValueError) as error:
            self._actors.pop(name, None)
            raise PeerSilent(f"{name} did not hand out block {key}: {error}") from error
        return Block(rows, arrays)

    def _actor(self, name: str) -> Actor:
        """Raises `ValueError` if there is none of that name."""
        actor = self._actors.get(name)  # another thread may take it out at any time
        if actor is None:
            actor = self._actors[name] = ray.get_actor(name, namespace=self._namespace)
        return actor

    def _node_of(self, name: str) -> str:
        return name[len(self._prefix) :][:NODE_DIGITS]
