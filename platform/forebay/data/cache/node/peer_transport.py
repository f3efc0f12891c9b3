"""Transport between the caches of the nodes over Ray: named actors, and blocks through the object store.

Checked with Ray 2.60.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayError

from forebay.data.cache.node.bloom_filter import BloomFilter
from forebay.data.cache.node.peer_lookup import PeerSilent
from forebay.data.transform.block import Block
from forebay.ray_cluster.actors import NODE_DIGITS

Actor: TypeAlias = Any


class RayPeerTransport:
    """`PeerTransport` for the cache of `node_id`, for use outside of an event loop.

    Other caches of the same node are not peers: a user who gives them separate directories wants them apart.
    """

    def __init__(self, *, namespace: str, prefix: str, node_id: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._here = node_id[:NODE_DIGITS]
        self._actors: dict[str, Actor] = {}

    def peer_names(self) -> list[str]:
        """Names of the caches of all other living nodes. Raises `PeerSilent`."""
        try:
            found = ray.util.list_named_actors(all_namespaces=True)
            # The actor of a dead node may keep its name for a while.
            others = {node["NodeID"][:NODE_DIGITS] for node in ray.nodes() if node["Alive"]} - {self._here}
        except (RayError, RuntimeError) as error:
            raise PeerSilent(f"the caches of the cluster cannot be listed: {error}") from error
        known = [actor["name"] for actor in found if actor["namespace"] == self._namespace]
        names = [name for name in known if name.startswith(self._prefix) and self._node_of(name) in others]
        for stale in self._actors.keys() - set(names):
            self._actors.pop(stale, None)
        return names

    def bloom_filters(self, names: Collection[str], deadline_s: float) -> Mapping[str, BloomFilter]:
        """Bloom filters by name, without peers that do not answer within `deadline_s`."""
        asked = {}
        for name in names:
            try:
                asked[self._actor(name).bloom_filter.remote()] = name
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

    def fetch_block(self, name: str, key: str, deadline_s: float) -> Block | None:
        """Get the block from `name`, or None if it is not on its disk. Raises `PeerSilent`."""
        give_up = time.monotonic() + deadline_s
        try:
            reply = ray.get(self._actor(name).send_block.remote(key), timeout=deadline_s)
            if reply is None:
                return None
            rows, arrays = ray.get(reply, timeout=max(give_up - time.monotonic(), 0.001))
        except (RayError, ValueError) as error:
            self._actors.pop(name, None)
            raise PeerSilent(f"{name} did not send block {key}: {error}") from error
        return Block(rows, arrays)

    def _actor(self, name: str) -> Actor:
        """Actor by name. Raises `ValueError` if there is none."""
        actor = self._actors.get(name)  # another thread may remove it at any time
        if actor is None:
            actor = self._actors[name] = ray.get_actor(name, namespace=self._namespace)
        return actor

    def _node_of(self, name: str) -> str:
        return name[len(self._prefix) :][:NODE_DIGITS]
