"""Memory stores of a run as Ray actors.

They are found by name, made when needed, and ended with their run.

Checked with Ray 2.60. They are detached: the worker that first requests one must not end it when it dies. This module
imports no PyTorch, so that a store starts in the time that Python and Ray take to start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError

from forebay.errors import Fenced, WriteFailed
from forebay.ray_cluster.actors import actors_by_name, make_on_node
from forebay.ray_cluster.nodes import _alive_nodes, steady_nodes
from forebay.runtime.foreign_code import begin
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint, part_facts
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.memory_store import MemoryStore, StoredStep
from forebay.training.checkpoint.part_memory.actor import StoreOwner, end_part_stores, outlive, upload_parts
from forebay.training.checkpoint.uploader import Uploader

ANSWER_S = 2.0
"""Time limit for an answer. A store answers at once. A silent one is on a lost node or on an overloaded one."""
SILENT_S = 30.0
"""Time limit for a silent store whose node is alive: it may have the newest checkpoint."""
START_S = 15.0
REPLICATE_S = 2.0
REPLICATE_BYTES_PER_S = 50e6
LOOK_S = 2.0
WATCH_S = 1.0
FLUSH_S = 900.0
END_S = 30.0
HAND_OVER_S = 60.0
"""Time in which the driver of a later attempt starts, on the same cluster."""

Stores: TypeAlias = dict[str, ActorHandle]

log = logging.getLogger(__name__)


class StoreActor(MemoryStore):
    """Memory store on its node.

    Ends after the run's coordinator, and then writes the newest checkpoint to storage.

    If a later attempt has the run by then, it waits `HAND_OVER_S`: that one may be on this cluster, and take what is
    here.
    """

    def __init__(self, owner: StoreOwner) -> None:
        self._owner = owner
        self._node = ray.get_runtime_context().get_node_id()
        self._replica = _Replica(owner, self._node)
        super().__init__(Uploader(owner.config, partial(upload_parts_of, owner.run)), self._replica.replicate)
        self._me = ray.get_runtime_context().current_actor
        begin(threading.Thread(target=self._watch, name="forebay-watch", daemon=True))

    async def stop_replicating(self) -> None:
        """Make no other store from now on.

        A store that is being made exists when this returns.
        """
        await asyncio.to_thread(self._replica.stop)

    def _watch(self) -> None:
        outlive(self._owner.coordinator)
        # A store with a newer step ends first: two at once would corrupt each other's checkpoint.
        while (mine := self._stored_step()) is not None and self._newest_elsewhere() > (mine, self._node):
            time.sleep(WATCH_S)
        error = asyncio.run(self.flush())
        if isinstance(error, Fenced):
            time.sleep(HAND_OVER_S)
        elif error is not None:
            log.error("%s", error)
        ray.kill(self._me)

    def _newest_elsewhere(self) -> tuple[StoredStep, str]:
        others = {node: store for node, store in stores_of(self._owner.run).items() if node != self._node}
        found = [(stored, node) for node, stored in stored_steps(others).items()]
        return max(found, default=(StoredStep(-1, False), ""))


class _Replica:
    """The store on another node that has all copies.

    Chosen again if it does not answer.
    """

    def __init__(self, owner: StoreOwner, node: str) -> None:
        self._owner, self._node = owner, node
        self._store: ActorHandle | None = None
        self._store_node = ""
        self._is_settled = self._is_stopped = False
        self._choose_at = 0.0
        self._choosing = threading.Lock()

    def stop(self) -> None:
        """Choose no store from now on."""
        with self._choosing:
            self._is_stopped = True

    async def replicate(self, encoded: EncodedCheckpoint) -> None:
        """Copy `encoded` to another node, if there is one.

        Afterwards no third store has any checkpoint.
        """
        try:
            await asyncio.to_thread(self._choose_when_due)
            if self._store is None:
                return
            shards = {number: np.frombuffer(content, np.uint8) for number, content in encoded.shards.items()}
            # In a thread, because it copies the shards into Ray's object store.
            answer = await asyncio.to_thread(self._store.keep_copy.remote, dict(encoded.metadata), shards)
            within_s = REPLICATE_S if self._is_settled else START_S
            await asyncio.wait_for(answer, within_s + encoded.num_bytes / REPLICATE_BYTES_PER_S)
            if not self._is_settled:
                await asyncio.to_thread(self._end_others)
        except (RayError, TimeoutError) as error:
            log.warning(
                "The checkpoint of step %d has no copy on another node: node %s does not answer (%s).",
                encoded.step,
                self._store_node[:8],
                type(error).__name__,
            )
            self._store, self._choose_at = None, 0.0

    def _choose_when_due(self) -> None:
        """Choose a node every `LOOK_S` seconds.

        Others join, and the chosen one may be about to leave.
        """
        with self._choosing:
            if time.monotonic() >= self._choose_at and not self._is_stopped:
                self._choose()

    def _choose(self) -> None:
        self._choose_at = time.monotonic() + LOOK_S
        nodes = steady_nodes() - {self._node}
        if self._store is not None and self._store_node in nodes:
            return
        self._store, self._is_settled = None, False
        if not nodes:
            return
        stores = stores_of(self._owner.run)
        # A node that already has a store is faster.
        self._store_node = min(nodes, key=lambda node: (node not in stores, node))
        self._store = make_store(self._owner, self._store_node)

    def _end_others(self) -> None:
        others = stores_of(self._owner.run)
        for node in others.keys() - {self._node, self._store_node}:
            ray.kill(others[node])
        self._is_settled = True


def upload_parts_of(run: str, encoded: EncodedCheckpoint, config: CheckpointConfig) -> bool:
    """Write the parts of a checkpoint to storage.

    `config` names the storage. Returns False if a part is lost. Raises `OSError`.
    """
    parts = list(part_facts(encoded.metadata).values())
    files = CheckpointFiles(config)
    return all(files.has_part(encoded.step, part) for part in upload_parts(run, encoded.step, parts, config))


def make_store(owner: StoreOwner, node: str) -> ActorHandle:
    """Return the store of a run on a node.

    Makes a missing one without waiting the second that this takes.
    """
    return make_on_node(StoreActor, f"{_prefix(owner.run)}{node}", node, owner)


def stores_of(run: str) -> Stores:
    """Stores of a run, by node."""
    return actors_by_name(_prefix(run))


def stored_steps(stores: Stores) -> dict[str, StoredStep]:
    """Steps of `stores`, by node.

    Waits up to `SILENT_S` for silent ones whose nodes are alive.
    """
    stored, silent = _ask(stores, _stored_step)
    deadline = time.monotonic() + SILENT_S
    if silent:
        log.warning("The memory of node %s does not answer.", _named(silent))
    while (silent := {node: silent[node] for node in silent.keys() & _alive_nodes()}) and time.monotonic() < deadline:
        time.sleep(WATCH_S)
        more, silent = _ask(silent, _stored_step)
        stored |= more
    if silent:
        log.warning("The memory of node %s is given up, with the checkpoints in it.", _named(silent))
    return {node: step for node, step in stored.items() if step is not None}


def yield_storage(stores: Stores, step: int) -> Stores:
    """Tell `stores` that the caller writes step `step` itself.

    It writes to storage. Returns the stores that did not answer.
    """
    return _ask(stores, lambda store: store.yield_storage.remote(step))[1]


def _stored_step(store: ActorHandle) -> Any:
    return store.stored_step.remote()


def _ask(stores: Stores, question: Callable[[ActorHandle], Any]) -> tuple[dict[str, Any], Stores]:
    """Answers by node, and the stores that did not answer."""
    # All questions are futures: stores also ask, and Ray warns of blocking calls in an actor with an event loop.
    asked = {question(store).future(): node for node, store in stores.items()}
    answered, silent = wait(asked, timeout=ANSWER_S)
    unreached = {answer for answer in answered if isinstance(answer.exception(), ActorUnavailableError)}
    found = {asked[answer]: answer.result() for answer in answered if answer.exception() is None}
    return found, {asked[answer]: stores[asked[answer]] for answer in silent | unreached}


def _named(stores: Stores) -> str:
    return ", ".join(sorted(node[:8] for node in stores))


def flush_newest(run: str, successor: CheckpointConfig | None = None) -> WriteFailed | Fenced | None:
    """Write a run's newest checkpoint from memory to storage.

    Returns the error if that fails.

    For the options of a later attempt, the `successor`, as a checkpoint of that attempt.
    """
    stores = stores_of(run)
    stored = stored_steps(stores)
    for node in sorted(stored, key=lambda node: stored[node], reverse=True):
        try:
            error: WriteFailed | Fenced | None = ray.get(stores[node].flush.remote(successor), timeout=FLUSH_S)
        except RayError:
            log.warning("The memory of node %s is lost; asking the next.", node[:8])
            continue
        return error
    return None


def end_stores(run: str, successor: CheckpointConfig | None = None) -> None:
    """Flush a run's newest checkpoint, and end all its stores.

    Writes to storage as `flush_newest` does. Logs a failed write.

    A silent store is ended too: if it answered later, it would overwrite checkpoints of the next run.
    """
    if error := flush_newest(run, successor):
        log.log(logging.INFO if isinstance(error, Fenced) else logging.ERROR, "%s", error)
    deadline = time.monotonic() + END_S
    # Repeated: a store that has just kept a checkpoint may be making another store, which is listed once it has
    # stopped.
    while (stores := stores_of(run)) and time.monotonic() < deadline:
        wait([store.stop_replicating.remote().future() for store in stores.values()], timeout=ANSWER_S)
        for store in stores_of(run).values():
            ray.kill(store)
    if stores:
        log.warning("The memory of node %s does not end.", _named(stores))
    end_part_stores(run)


def has_stores(run: str) -> bool:
    """Whether a run has memory stores.

    They may have to upload a checkpoint with its parts.
    """
    return bool(stores_of(run))


def _prefix(run: str) -> str:
    # Run names contain no colon.
    return f"checkpoints:{run}:"
