"""Part stores of a run as Ray actors.

There is one for each node with workers, found by name and made when needed.

This module imports no PyTorch, so that a store starts in the time that Python and Ray take to start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, RayError

from forebay.ray_cluster.actors import actors_by_name, make_on_node
from forebay.ray_cluster.nodes import steady_nodes
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import PartFacts
from forebay.training.checkpoint.part_memory.store import KeptPart, PartStore

PREFIX = "checkpoint-parts:"
ANSWER_S = 2.0
COPY_S = 15.0
COPY_BYTES_PER_S = 50e6
UPLOAD_S = 900.0
WATCH_S = 1.0

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
        self._me = ray.get_runtime_context().current_actor
        threading.Thread(target=self._watch, name="forebay-watch", daemon=True).start()

    def _watch(self) -> None:
        while is_alive(self._owner.coordinator):
            time.sleep(WATCH_S)
        deadline = time.monotonic() + UPLOAD_S
        while self._is_needed(self._owner.run) and time.monotonic() < deadline:
            time.sleep(WATCH_S)
        ray.kill(self._me)

    async def _copy_to_neighbour(self, part: KeptPart, content: memoryview) -> None:
        node = ""
        try:
            node = await asyncio.to_thread(self._neighbour)
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

    def _neighbour(self) -> str:
        """Return the next node in the order of ids.

        Empty if there is no other.
        """
        others = sorted(steady_nodes() - {self._node})
        return next((node for node in others if node > self._node), others[0] if others else "")


def make_part_store(owner: StoreOwner, node: str, is_needed: Callable[[str], bool]) -> ActorHandle:
    """Return the part store of a run on a node.

    Makes a missing one without waiting the second that this takes.
    """
    return make_on_node(PartStoreActor, f"{PREFIX}{owner.run}:{node}", node, owner, is_needed)


def part_stores_of(run: str) -> PartStores:
    """Part stores of a run, by node."""
    return actors_by_name(f"{PREFIX}{run}:")


def upload_parts(run: str, step: int, parts: Sequence[PartFacts], config: CheckpointConfig) -> list[PartFacts]:
    """Write all `parts` from memory to storage.

    `config` names the storage. Each part is written by the first node that has it.

    Returns those that no node has. Raises `OSError` if storage refuses one.
    """
    left = list(parts)
    for node, store in sorted(part_stores_of(run).items()):
        if not left:
            break
        try:
            found: tuple[int, ...] | str = store.upload.remote(step, left, config).future().result(UPLOAD_S)
        except (RayError, TimeoutError) as error:
            log.warning("The parts in the memory of node %s are lost (%s).", node[:8], type(error).__name__)
            continue
        if isinstance(found, str):
            raise OSError(found)
        left = [facts for facts in left if facts.number not in found]
    return left


def end_part_stores(run: str) -> None:
    """End all part stores of a run.

    What they have must be in storage.
    """
    for store in part_stores_of(run).values():
        ray.kill(store)


def is_alive(actor: ActorHandle) -> bool:
    """Whether an actor is alive, or its state is unknown."""
    try:
        actor.__ray_ready__.remote().future().result(ANSWER_S)
    except ActorDiedError:
        return False
    except (RayError, TimeoutError):
        return True  # It is busy, or temporarily unreachable.
    return True
