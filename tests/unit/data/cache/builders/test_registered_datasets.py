"""Registration of datasets: one payload, however many ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.data.cache.builders import registered_datasets as module
from forebay.data.cache.builders.registered_datasets import RegisteredDatasets, pack
from forebay.data.sources.scan import scan
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import TransformFailed


@pytest.fixture
def payload(parquet_folder: Callable[..., Path]) -> bytes:
    return pack(Dataset(scan(parquet_folder({"a.parquet": [5]})), Transform(id=Dense("id"))))


async def ask(known: RegisteredDatasets, payload: bytes, sent: list[int], number: int) -> None:
    """A rank or a node that asks for its first block."""
    await known.wait_for_registration("d")
    if "d" not in known:
        sent.append(number)
        await asyncio.sleep(0.01)  # the payload travels
        known.register("d", payload)


def test_one_of_many_that_ask_at_once_sends_the_dataset(payload: bytes) -> None:
    async def main() -> list[int]:
        known, sent = RegisteredDatasets(lambda *_: None), []  # type: ignore[arg-type,return-value,var-annotated]
        await asyncio.gather(*(ask(known, payload, sent, number) for number in range(64)))
        await known.wait_for_registration("d")
        return sent

    assert len(asyncio.run(main())) == 1


def test_a_sender_that_dies_or_fails_is_followed_by_another(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REGISTERS_WITHIN_S", 0.05)
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 0.01)

    async def main() -> list[int]:
        known, sent = RegisteredDatasets(lambda *_: None), []  # type: ignore[arg-type,return-value,var-annotated]
        await known.wait_for_registration("d")  # and is never heard of again
        await ask(known, payload, sent, 1)
        with pytest.raises(TransformFailed):
            known.register("e", b"cno_such_module\nx\n.")
        await known.wait_for_registration("e")
        return sent

    assert asyncio.run(main()) == [1]


def test_calls_of_the_dead_do_not_take_turns_before_the_living(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REGISTERS_WITHIN_S", 0.05)
    monkeypatch.setattr(module, "_WAITS_S", 0.06)
    monkeypatch.setattr(module, "_LOOK_AGAIN_S", 0.01)

    async def main() -> list[int]:
        known, sent = RegisteredDatasets(lambda *_: None), []  # type: ignore[arg-type,return-value,var-annotated]
        dead = [asyncio.ensure_future(known.wait_for_registration("d")) for _ in range(200)]
        await asyncio.sleep(0.02)
        await ask(known, payload, sent, 1)  # 200 turns of 0.05 s would be 10 s
        assert not any(each.cancelled() for each in dead)
        return sent

    assert asyncio.run(asyncio.wait_for(main(), 5.0)) == [1]


def test_room_for_registrations_stays_however_many_wait(payload: bytes) -> None:
    async def main() -> None:
        known = RegisteredDatasets(lambda *_: None)  # type: ignore[arg-type,return-value]
        calls = [asyncio.ensure_future(known.wait_for_registration("d")) for _ in range(4 * module.MOST_WAITING)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(not call.done() for call in calls) == module.MOST_WAITING
        known.register("d", payload)
        await asyncio.gather(*calls)
        await known.wait_for_registration("d")

    asyncio.run(main())
