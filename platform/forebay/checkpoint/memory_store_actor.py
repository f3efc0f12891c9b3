"""The stores of a run's commits as Ray actors: found by name, made where one is needed, ended with their run.

Checked with Ray 2.60. They are detached, because whoever asks for one first, a worker, must not take it along when it
dies. It imports no PyTorch: a store is there in the time that Python and Ray take to start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import EncodedCheckpoint
from forebay.checkpoint.memory_store import MemoryStore, StoredStep
from forebay.checkpoint.uploader import Uploader
from forebay.errors import WriteFailed
from forebay.ray_cluster.actors import NAMESPACE
from forebay.ray_cluster.nodes import _alive_nodes, steady_nodes

ANSWER_S = 2.0
"""A store answers at once. One that does not is on a node that has just been lost, or has too much to do."""
SILENT_S = 30.0
"""How long one whose node is alive is waited for: it may have the newest commit."""
START_S = 15.0
REPLICATE_S = 2.0
REPLICATE_BYTES_PER_S = 50e6
LOOK_S = 2.0
WATCH_S = 1.0
FLUSH_S = 900.0
END_S = 30.0

Stores: TypeAlias = dict[str, ActorHandle]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOwner:
    """Whose commits a store keeps; a store ends when `coordinator` is dead."""

    run: str
    safekeeping: CheckpointConfig
    coordinator: ActorHandle


class StoreActor(MemoryStore):
    """A store on its node. Follows the run's coordinator into its end, with the newest commit brought to storage."""

    def __init__(self, owner: StoreOwner) -> None:
        self._owner = owner
        self._node = ray.get_runtime_context().get_node_id()
        self._neighbour = _Replica(owner, self._node)
        super().__init__(Uploader(owner.safekeeping), self._neighbour.hold)
        self._me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._watch, name="forebay-watch", daemon=True).start()

    async def retire(self) -> None:
        """Make no other store any more; one that is being made is there when this answers."""
        await asyncio.to_thread(self._neighbour.retire)

    def _watch(self) -> None:
        while is_alive(self._owner.coordinator):
            time.sleep(WATCH_S)
        # One that knows more goes first: two at once would tear each other's commit.
        while (mine := self._held()) is not None and self._held_elsewhere() > (mine, self._node):
            time.sleep(WATCH_S)
        if error := asyncio.run(self.flush()):
            log.error("%s", error)
        ray.kill(self._me)

    def _held_elsewhere(self) -> tuple[StoredStep, str]:
        others = {node: store for node, store in stores_of(self._owner.run).items() if node != self._node}
        found = [(holding, node) for node, holding in holdings(others).items()]
        return max(found, default=(StoredStep(-1, False), ""))


class _Replica:
    """The store on another node that has a copy of each commit; chosen anew when it does not answer."""

    def __init__(self, owner: StoreOwner, node: str) -> None:
        self._owner, self._node = owner, node
        self._store: ActorHandle | None = None
        self._store_node = ""
        self._is_settled = self._is_retired = False
        self._look_at = 0.0
        self._looking = threading.Lock()

    def retire(self) -> None:
        """Choose none any more."""
        with self._looking:
            self._is_retired = True

    async def hold(self, sealed: EncodedCheckpoint) -> None:
        """Have `sealed` copied there, if there is another node. Afterwards no third store has any commit."""
        try:
            await asyncio.to_thread(self._look)
            if self._store is None:
                return
            state = np.frombuffer(sealed.state, np.uint8)
            # In a thread: it copies the state into Ray's object store.
            answer = await asyncio.to_thread(self._store.hold.remote, dict(sealed.facts), state)
            within_s = REPLICATE_S if self._is_settled else START_S
            await asyncio.wait_for(answer, within_s + sealed.num_bytes / REPLICATE_BYTES_PER_S)
            if not self._is_settled:
                await asyncio.to_thread(self._end_others)
        except (RayError, TimeoutError) as error:
            log.warning(
                "The commit of step %d has no copy on another node: node %s does not answer (%s).",
                sealed.step,
                self._store_node[:8],
                type(error).__name__,
            )
            self._store, self._look_at = None, 0.0

    def _look(self) -> None:
        """Choose a node now and then: others come, and the one at hand may be about to leave."""
        with self._looking:
            if time.monotonic() >= self._look_at and not self._is_retired:
                self._choose()

    def _choose(self) -> None:
        self._look_at = time.monotonic() + LOOK_S
        nodes = steady_nodes() - {self._node}
        if self._store is not None and self._store_node in nodes:
            return
        self._store, self._is_settled = None, False
        if not nodes:
            return
        # One that has a store already is quicker.
        self._store_node = min(nodes, key=lambda node: (node not in stores_of(self._owner.run), node))
        self._store = make_store(self._owner, self._store_node)

    def _end_others(self) -> None:
        others = stores_of(self._owner.run)
        for node in others.keys() - {self._node, self._store_node}:
            ray.kill(others[node])
        self._is_settled = True


def make_store(owner: StoreOwner, node: str) -> ActorHandle:
    """The store of a run on a node; made if it is not there, which takes a second, for which nobody waits here."""
    return (
        ray.remote(StoreActor)
        .options(
            name=f"{_prefix(owner.run)}{node}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(owner)
    )


def stores_of(run: str) -> Stores:
    """The stores of a run, by node."""
    found: Stores = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(_prefix(run)):
            with suppress(ValueError):  # it has just ended
                node = actor["name"].removeprefix(_prefix(run))
                found[node] = ray.get_actor(actor["name"], namespace=NAMESPACE)
    return found


def holdings(stores: Stores) -> dict[str, StoredStep]:
    """What they have, by node. Waits for those that are silent while their nodes are alive, for `SILENT_S`."""
    held, silent = _ask(stores, _holding)
    deadline = time.monotonic() + SILENT_S
    if silent:
        log.warning("The memory of node %s does not answer.", _named(silent))
    while (silent := {node: silent[node] for node in silent.keys() & _alive_nodes()}) and time.monotonic() < deadline:
        time.sleep(WATCH_S)
        more, silent = _ask(silent, _holding)
        held |= more
    if silent:
        log.warning("The memory of node %s is given up, and what was saved there with it.", _named(silent))
    return {node: holding for node, holding in held.items() if holding is not None}


def give_up(stores: Stores, step: int) -> Stores:
    """Have stores leave storage to somebody who writes the commit of `step` there himself; those that are silent."""
    return _ask(stores, lambda store: store.give_up.remote(step))[1]


def _holding(store: ActorHandle) -> Any:
    return store.holding.remote()


def _ask(stores: Stores, question: Callable[[ActorHandle], Any]) -> tuple[dict[str, Any], Stores]:
    """The answers by node, and the stores that give none."""
    # Futures throughout: a store asks as well, and Ray warns of anything else in an actor with an event loop.
    asked = {question(store).future(): node for node, store in stores.items()}
    answered, silent = wait(asked, timeout=ANSWER_S)
    unreached = {answer for answer in answered if isinstance(answer.exception(), ActorUnavailableError)}
    found = {asked[answer]: answer.result() for answer in answered if answer.exception() is None}
    return found, {asked[answer]: stores[asked[answer]] for answer in silent | unreached}


def _named(stores: Stores) -> str:
    return ", ".join(sorted(node[:8] for node in stores))


def flush_newest(run: str) -> WriteFailed | None:
    """Have the newest commit of a run that is in memory in storage; the error if it cannot get there."""
    stores = stores_of(run)
    held = holdings(stores)
    for node in sorted(held, key=lambda node: held[node], reverse=True):
        try:
            error: WriteFailed | None = ray.get(stores[node].flush.remote(), timeout=FLUSH_S)
        except RayError:
            log.warning("The memory of node %s is lost; asking the next.", node[:8])
            continue
        return error
    return None


def end_stores(run: str) -> None:
    """Bring the newest commit of a run to storage, and end all its stores. What cannot get there is logged.

    One that stays silent is ended, too: if it came to itself later, it would write over what the next run saves.
    """
    if error := flush_newest(run):
        log.error("%s", error)
    deadline = time.monotonic() + END_S
    # More than once: one that has just had a commit may be making another, which is listed when it has retired.
    while (stores := stores_of(run)) and time.monotonic() < deadline:
        wait([store.retire.remote().future() for store in stores.values()], timeout=ANSWER_S)
        for store in stores_of(run).values():
            ray.kill(store)
    if stores:
        log.warning("The memory of node %s does not end.", _named(stores))


def is_alive(actor: ActorHandle) -> bool:
    """Whether an actor is there, or may be."""
    try:
        actor.__ray_ready__.remote().future().result(ANSWER_S)
    except ActorDiedError:
        return False
    except (RayError, TimeoutError):
        return True  # it is busy, or cannot be reached for the moment
    return True


def _prefix(run: str) -> str:
    # No name of a run holds a colon.
    return f"commits:{run}:"
