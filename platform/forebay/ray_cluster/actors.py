"""Named actors of a cluster, and their heartbeat.

Any process of the cluster finds them. Checked with Ray 2.60.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.errors import InvalidOption
from forebay.runtime.formatting import did_you_mean

NAMESPACE = "forebay"
"""Ray namespace of all named actors of Forebay."""
RUN_PREFIX = "run-"
"""Prefix of a coordinator's actor name. The run's name follows."""
_CACHE_PROTOCOL = 6
CACHE_PREFIX = f"forebay-cache-{_CACHE_PROTOCOL}-"
"""Prefix of a cache actor's name.

The protocol number increases with every change of its calls or replies, so that actors of another release are not used.
"""

DATA_NODE_PREFIX = f"forebay-data-{_CACHE_PROTOCOL}-"
"""Prefix of the name of a data node's actor. The first digits of the node id follow."""
NODE_DIGITS = 12
"""Number of digits of a node id in the names of its actors."""

ANSWER_S = 10.0
_PING_S = 5.0
_UNAVAILABLE_S = 1.0


def names_of(prefix: str, begin: str = "") -> list[str]:
    """Names behind `prefix` that begin with `begin`, sorted.

    Sends no request to the actors.
    """
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(
        actor["name"].removeprefix(prefix)
        for actor in actors
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{prefix}{begin}")
    )


def find(prefix: str, name: str) -> ActorHandle | None:
    """Actor of this name, or None.

    None also if it has ended since its name was read.
    """
    try:
        return ray.get_actor(f"{prefix}{name}", namespace=NAMESPACE)
    except ValueError:
        return None


def actors_by_name(prefix: str) -> dict[str, ActorHandle]:
    """Actors behind `prefix`, by the rest of their names.

    Leaves out actors that have just ended.
    """
    return {name: actor for name in names_of(prefix) if (actor := find(prefix, name)) is not None}


def make_on_node(actor: type, name: str, node: str, *arguments: Any, **options: Any) -> ActorHandle:
    """Return the detached actor of this name, without CPUs.

    Makes a missing one on `node` and does not wait for it.

    `options` are further ones of `ray.remote`, such as max_restarts. Raises `ValueError` while an actor of this name
    is dying.
    """
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    fixed = {"name": name, "namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached", "num_cpus": 0}
    made: ActorHandle = ray.remote(actor).options(scheduling_strategy=strategy, **fixed, **options).remote(*arguments)
    return made


def find_or_refuse(prefix: str, name: str, kind: str) -> ActorHandle:
    """Actor of this name.

    Raises `InvalidOption`, which lists the known names, for a missing one. `kind` is a word for the error.
    """
    found = find(prefix, name)
    if found is not None:
        return found
    there = names_of(prefix)
    hint = did_you_mean(name, there)
    known = f"Under way: {', '.join(there)}." if there else "None is under way."
    raise InvalidOption(f"no {kind} named {name!r} is under way on this cluster.{hint} {known}", name=name, there=there)


def ask_all(
    prefix: str, ask: Callable[[ActorHandle], ray.ObjectRef], *, begin: str = "", wait_s: float = ANSWER_S
) -> list[Any]:
    """Answers of the actors of `names_of`, in that order.

    Leaves out actors that have ended or are silent for `wait_s`.
    """
    asked = [ask(actor) for name in names_of(prefix, begin) if (actor := find(prefix, name)) is not None]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=wait_s) if asked else ([], [])
    answers = []
    for answer in ready:
        try:
            answers.append(ray.get(answer))
        except RayError:  # it has ended since
            continue
    return answers


async def is_living(actor: Any) -> bool:
    """Whether an actor answers, however late: it has not died.

    After some 20 s, Ray gives up a call to a process that a signal has stopped, and says that it may live.
    """
    while True:
        try:
            await actor.__ray_ready__.remote()
        except ActorUnavailableError:
            await asyncio.sleep(_UNAVAILABLE_S)
        except RayActorError:
            return False
        else:
            return True


class Heartbeat:
    """Pings an actor every 5 s.

    An actor with asynchronous methods answers at once, however busy its threads are.
    """

    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor
        self._ping: Any = None
        self._since = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since an unanswered ping. 0 without one."""
        now = time.monotonic()
        if self._ping is not None and ray.wait([self._ping], timeout=0)[0]:
            self._ping, self._since = None, now
        if self._ping is None and now - self._since > _PING_S:
            self._ping, self._since = self._actor.__ray_ready__.remote(), now
        return now - self._since if self._ping is not None else 0.0
