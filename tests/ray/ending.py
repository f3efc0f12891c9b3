"""The ends of actors: `ray.kill` returns before the process has ended, and the actor answers until then."""

from __future__ import annotations

from contextlib import suppress

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

WAIT_S = 60.0


def kill(actor: ActorHandle) -> None:
    """Kill the actor. Returns once its process has ended."""
    ray.kill(actor)
    await_end(actor)


def await_end(actor: ActorHandle) -> None:
    """Wait for the end of an actor that was killed."""
    with suppress(RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote(), timeout=WAIT_S)
