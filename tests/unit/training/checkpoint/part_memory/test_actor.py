"""Each part is uploaded by one node, and a node keeps its neighbour instead of asking for all nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError
from tests.unit.training.checkpoint.part_memory.test_store import content_of, facts_of

from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.part_memory import actor
from forebay.training.checkpoint.part_memory.actor import Neighbour, _shares, upload_parts
from forebay.training.checkpoint.part_memory.store import KeptPart, PartStore


def test_each_part_is_uploaded_once_and_the_nodes_share_the_work() -> None:
    held = {f"n{node}": {2 * node, 2 * node + 1, 2 * (node + 1) % 8, (2 * node + 3) % 8} for node in range(4)}
    shares = _shares(range(8), held)
    assert sorted(number for numbers in shares.values() for number in numbers) == list(range(8))
    assert {len(numbers) for numbers in shares.values()} == {2}
    assert all(number in held[node] for node, numbers in shares.items() for number in numbers)


def test_parts_that_no_node_has_are_nobodys_share() -> None:
    assert _shares([1, 2], {"a": {2}}) == {"a": [2]}
    assert _shares([1], {"a": set()}) == {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    asked = Counter[str]()

    def steady() -> set[str]:
        asked["all"] += 1
        return {"a", "b", "c"} - leaving.keys()

    leaving: dict[str, float | None] = {}
    monkeypatch.setattr(actor, "steady_nodes", steady)
    monkeypatch.setattr(actor, "draining_nodes", lambda: leaving)
    monkeypatch.setattr(actor, "LOOK_S", 0.0)
    return asked


def test_a_neighbour_is_kept_until_it_fails_or_drains(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = Neighbour("b")
    assert [neighbour.node() for _ in range(100)] == ["c"] * 100
    assert asked["all"] == 1
    neighbour.forget()
    assert neighbour.node() == "c"
    monkeypatch.setattr(actor, "draining_nodes", lambda: {"c": None})
    monkeypatch.setattr(actor, "steady_nodes", lambda: {"a", "b"})
    assert neighbour.node() == "a", "the order goes round"


def test_alone_there_is_no_neighbour(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "steady_nodes", lambda: {"b"})
    assert Neighbour("b").node() == ""


class StoreCall:
    """A store's method at the other end of a line that may be cut."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]], lose: Callable[[], bool]) -> None:
        self._method, self._lose = method, lose

    def remote(self, *arguments: Any) -> Any:
        future = Future[Any]()
        if self._lose():
            future.set_exception(RayActorError())
        else:
            future.set_result(asyncio.run(self._method(*arguments)))
        return SimpleNamespace(future=lambda: future)


@pytest.mark.parametrize("dead", [[2], [2, 1], [3, 1]])
def test_parts_stay_until_storage_has_all_of_their_checkpoint(
    dead: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes die in an upload, after others have written their shares and kept parts of later checkpoints."""
    nodes, config = 4, CheckpointConfig(uri=str(tmp_path), keep_every=10)

    async def nothing(part: KeptPart, content: memoryview) -> None: ...

    stores, lost = [PartStore(config, nothing) for _ in range(nodes)], set[int]()

    async def save(step: int, number: int) -> None:
        for node in {number, (number + 1) % nodes, (number + 2) % nodes} - lost:
            part = KeptPart(step=step, sealed=step - 1, facts=facts_of(step, number))
            await stores[node].keep_copy(part, np.frombuffer(content_of(step, number), np.uint8))

    def save_all(step: int) -> None:
        for number in range(nodes):
            asyncio.run(save(step, number))

    def line(node: int) -> Any:
        def lose() -> bool:
            if node == dead[0]:
                lost.update(dead)
                for step in (11, 12, 13):
                    save_all(step)
            return node in lost

        store = stores[node]
        here = SimpleNamespace(
            held=StoreCall(store.held, lambda: False), uploaded=StoreCall(store.uploaded, lambda: node in lost)
        )
        here.upload = StoreCall(store.upload, lose)
        return here

    monkeypatch.setattr(actor, "part_stores_of", lambda _: {f"n{node}": line(node) for node in range(nodes)})
    save_all(10)
    parts = [facts_of(10, number) for number in range(nodes)]
    assert upload_parts("a", 10, parts, config) == [], "each has a copy on a node that lives"
    assert all(CheckpointFiles(config).has_part(10, facts) for facts in parts)
    save_all(14)
    kept = {node: asyncio.run(stores[node].held(10)) for node in range(nodes) if node not in lost}
    assert not any(kept.values()), "memory is free again once storage has it"
