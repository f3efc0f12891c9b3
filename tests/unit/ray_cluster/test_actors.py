"""An actor counts as dead only once Ray is sure of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from forebay.ray_cluster import actors
from forebay.ray_cluster.actors import is_living

UNSURE = ActorUnavailableError("no answer", b"0" * 16)


@pytest.mark.parametrize(
    ("answers", "is_alive"),
    [([None], True), ([ActorDiedError()], False), ([UNSURE, UNSURE, None], True), ([UNSURE, ActorDiedError()], False)],
)
def test_an_actor_of_which_ray_is_not_sure_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, answers: list[Exception | None], is_alive: bool
) -> None:
    monkeypatch.setattr(actors, "_UNAVAILABLE_S", 0.0)
    left = iter(answers)

    async def answer() -> None:
        if (error := next(left)) is not None:
            raise error

    def ask() -> Awaitable[None]:
        return answer()

    actor: Any = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=ask))
    assert asyncio.run(is_living(actor)) == is_alive
    assert [*left] == []
