"""Part stores of a run as Ray actors.

There is one for each node with workers, found by name and made when needed.

This module imports no PyTorch, so that a store starts in the time that Python and Ray take to start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayError

from forebay.ray_cluster.actors import actors_by_name, find, make_on_node, names_of
from forebay.ray_cluster.nodes import draining_nodes, steady_nodes
from forebay.runtime.foreign_code import begin
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import PartFacts
from forebay.training.checkpoint.part_memory.store import KeptPart, PartStore

PREFIX = "checkpoint-parts:"
ANSWER_S = 2.0
COPY_S = 15.0
COPY_BYTES_PER_S = 50e6
UPLOAD_S = 900.0
WATCH_S = 1.0
LOOK_S = 2.0

PartStores: TypeAlias = dict[str, ActorHandle]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOwner:
    """Run whose checkpoints a store keeps.

    A store ends when `coordinator` is dead.
    """

    run: str
    config: CheckpointConfig
    coordinator: ActorHandle


class PartStoreActor(PartStore):
    """Part store on its node.

    `is_needed` says whether it must outlive the coordinator for an upload.
    """

    def __init__(self, owner: StoreOwner, is_needed: Callable[[str], bool]) -> None:
        super().__init__(owner.config, self._copy_to_neighbour)
        self._owner, self._is_needed = owner, is_needed
        self._node = ray.get_runtime_context().get_node_id()
        self._neighbour = Neighbour(self._node)
        self._me = ray.get_runtime_context().current_actor
        begin(threading.Thread(target=self._watch, name="forebay-watch", daemon=True))

    def _watch(self) -> None:
        outlive(self._owner.coordinator)
        deadline = time.monotonic() + UPLOAD_S
        while self._is_needed(self._owner.run) and time.monotonic() < deadline:
            time.sleep(WATCH_S)
        ray.kill(self._me)

    async def _copy_to_neighbour(self, part: KeptPart, content: memoryview) -> None:
        node = ""
        try:
            node = await asyncio.to_thread(self._neighbour.node)
            if not node:
                return
            store = await asyncio.to_thread(make_part_store, self._owner, node, self._is_needed)
            # In a thread, because it copies the part into Ray's object store.
            answer = await asyncio.to_thread(store.keep_copy.remote, part, np.frombuffer(content, np.uint8))
            await asyncio.wait_for(answer, COPY_S + len(content) / COPY_BYTES_PER_S)
        except (RayError, TimeoutError) as error:
            log.warning(
                "Part %d of the checkpoint of step %d has no copy on another node: node %s does not answer (%s).",
                part.facts.number,
                part.step,
                node[:8],
                type(error).__name__,
            )
            self._neighbour.forget()


class Neighbour:
    """The next node by id, which has copies.

    It is kept while it answers and does not drain: at each checkpoint, 512 nodes would ask for the list of 512 nodes.
    """

    def __init__(self, here: str) -> None:
        self._here, self._node = here, ""
        self._look_at = 0.0
        self._looking = threading.Lock()

    def node(self) -> str:
        """Return its id. Empty if there is no other node."""
        with self._looking:
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_S
                if not self._node or self._node in draining_nodes():
                    self._node = self._next()
            return self._node

    def forget(self) -> None:
        """Choose again at the next checkpoint."""
        with self._looking:
            self._node, self._look_at = "", 0.0

    def _next(self) -> str:
        others = sorted(steady_nodes() - {self._here})
        return next((node for node in others if node > self._here), others[0] if others else "")


def make_part_store(owner: StoreOwner, node: str, is_needed: Callable[[str], bool]) -> ActorHandle:
    """Return the part store of a run on a node.

    Makes a missing one without waiting the second that this takes.
    """
    return make_on_node(PartStoreActor, f"{PREFIX}{owner.run}:{node}", node, owner, is_needed)


def part_store_on(run: str, node: str) -> ActorHandle | None:
    """Part store of a run on a node, or None."""
    return find(f"{PREFIX}{run}:", node)


def nodes_with_parts(run: str) -> list[str]:
    """Nodes with part stores of a run, sorted."""
    return names_of(f"{PREFIX}{run}:")


def part_stores_of(run: str) -> PartStores:
    """Part stores of a run, by node."""
    return actors_by_name(f"{PREFIX}{run}:")


def upload_parts(run: str, step: int, parts: Sequence[PartFacts], config: CheckpointConfig) -> list[PartFacts]:
    """Write all `parts` from memory to storage.

    `config` names the storage. Each part is written by one node that has it.

    Returns those that no node has. Raises `OSError` if storage refuses one.
    """
    wanted, stores = {facts.number: facts for facts in parts}, part_stores_of(run)
    left = dict(wanted)
    # All nodes at once, and each gets its share only: the facts of 4,096 parts for each of 512 nodes would be 2
    # million, and the uploads of the nodes one after the other.
    answers: dict[str, list[int]] = _answers({node: store.held.remote(step) for node, store in stores.items()})
    held = {node: wanted.keys() & set(numbers) for node, numbers in answers.items()}
    untried = {node: set(numbers) for node, numbers in held.items()}
    while shares := _shares(left, untried):
        asked = {
            node: stores[node].upload.remote(step, [left[number] for number in numbers], config)
            for node, numbers in shares.items()
        }
        written: dict[str, tuple[int, ...] | str] = _answers(asked)
        for node, numbers in shares.items():
            if node not in written:
                del untried[node], held[node]
                continue
            found = written[node]
            if isinstance(found, str):
                raise OSError(found)
            untried[node].difference_update(numbers)
            for number in found:
                del left[number]
    for node, have in held.items():
        stores[node].uploaded.remote(step, [wanted[number] for number in sorted(have - left.keys())])
    return list(left.values())


def _answers(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answers of the stores, by node.

    A lost one is logged.
    """
    futures = {node: answer.future() for node, answer in asked.items()}
    wait(futures.values(), timeout=UPLOAD_S)
    found = dict[str, Any]()
    for node, future in futures.items():
        try:
            found[node] = future.result(0)
        except (RayError, TimeoutError) as error:
            log.warning("The parts in the memory of node %s are lost (%s).", node[:8], type(error).__name__)
    return found


def _shares(wanted: Collection[int], held: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
    """Assign each wanted part to a node that has it."""
    holders, shares = dict[int, list[str]](), dict[str, list[int]]()
    for node in sorted(held):
        for number in held[node]:
            holders.setdefault(number, []).append(node)
    for number in wanted:
        if number in holders:
            shares.setdefault(min(holders[number], key=lambda node: len(shares.get(node, ()))), []).append(number)
    return shares


def end_part_stores(run: str) -> None:
    """End all part stores of a run.

    What they have must be in storage.
    """
    for store in part_stores_of(run).values():
        ray.kill(store)


def outlive(coordinator: ActorHandle) -> None:
    """Return once the coordinator of a run has ended."""
    while True:
        try:
            coordinator.outlived.remote().future().result()
        except ActorDiedError:
            return
        except RayError:
            time.sleep(WATCH_S)  # It is temporarily unreachable.


def is_alive(actor: ActorHandle) -> bool:
    """Whether an actor is alive, or its state is unknown."""
    try:
        actor.__ray_ready__.remote().future().result(ANSWER_S)
    except ActorDiedError:
        return False
    except (RayError, TimeoutError):
        return True  # It is busy, or temporarily unreachable.
    return True
