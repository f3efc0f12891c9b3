"""The workers of a run under Horovod: asks Ray for them, makes worlds of them, and hears how each world ends."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forebay.driver.elastic.policy import PoolWorker
from forebay.driver.horovod.liveness import Entered, LivenessServer, Lost, Placed, Sign
from forebay.driver.horovod.rendezvous import Rendezvous
from forebay.driver.horovod.worker import Answer, HorovodWorker, SpawnRequest
from forebay.driver.horovod.world import RankAssignment
from forebay.driver.worker_error import WorkerError
from forebay.job.job import Resources
from forebay.ray_cluster.placement import new_place
from forebay.world import World

GONE_S = 5.0
"""How long a worker that was dismissed may take to be ended by Ray; then it is told to end itself."""
END_S = 10.0
CLOSE_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """A worker is ready to train, or `raised` while it got ready."""

    name: str
    raised: WorkerError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker has left world number `world`."""

    name: str
    world: int
    answer: Answer


Message = Sign | Warmed | Answered


@dataclass(slots=True, kw_only=True)
class HorovodWorld:
    """One world, from its making to the moment when the last of its members has left it or died."""

    number: int
    names: tuple[str, ...]
    rendezvous: Rendezvous | None
    entered: set[str] = field(default_factory=set)
    answers: dict[str, Answer] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    def note(self, message: Entered | Answered) -> None:
        """A member has met the others, or has left them."""
        match message:
            case Entered():
                self.entered.add(message.name)
                if len(self.entered) == len(self.names):
                    self.close()
            case Answered():
                self.answers[message.name] = message.answer

    def close(self) -> None:
        """Nobody is to meet in this world any more."""
        if self.rendezvous is not None:
            self.rendezvous.close()
            self.rendezvous = None

    @property
    def silent(self) -> list[str]:
        """Members of whom nothing was heard yet, by rank."""
        return [name for name in self.names if name not in self.answers and name not in self.lost]

    @property
    def lost_ranks(self) -> list[int]:
        return sorted(self.names.index(name) for name in self.lost)


class WorkerPool:
    """All workers of one run that are there or to come. Used by one thread."""

    def __init__(self, run: str, coordinator: ActorHandle, payload: bytes, resources: Resources) -> None:
        address = ray.util.get_node_ip_address()
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lines = LivenessServer(address, self._inbox.put)
        self._run_name, self._address, self._coordinator = run, address, coordinator
        self._payload = ray.put(payload)
        self._resources = resources
        self._actors: dict[str, ActorHandle] = {}
        self._rooms: dict[str, PlacementGroup] = {}
        self._num_asked, self._num_worlds = 0, 0
        self._dismissed_at: dict[str, float] = {}
        self.members: dict[str, PoolWorker] = {}
        self.world: HorovodWorld | None = None

    def ask_for(self, count: int) -> None:
        """Ask Ray for more workers. One it has no room for stays asked for, which an autoscaler takes as demand.

        Each has a placement group of its own, for that tells whether there is room; an actor says so only when its
        process has started.
        """
        needs = {"CPU": self._resources.cpus, "GPU": self._resources.gpus}
        for _ in range(count):
            name = f"worker-{self._num_asked}"
            self._num_asked += 1
            hiring = SpawnRequest(
                name=name, coordinator=self._coordinator, payload=[self._payload], line=self._lines.address
            )
            room = new_place(self._run_name, {kind: amount for kind, amount in needs.items() if amount})
            actor = (
                ray.remote(HorovodWorker)
                .options(
                    num_cpus=needs["CPU"],
                    num_gpus=needs["GPU"],
                    scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=room),
                )
                .remote(hiring)
            )
            self._actors[name], self._rooms[name] = actor, room
            self.members[name] = PoolWorker(name=name, asked_at=time.monotonic())
            self._hear(actor.warm_up.remote(), name, partial(_warmed, name))

    def dismiss(self, names: Sequence[str]) -> None:
        """End workers that are not needed. They are forgotten at once."""
        for name in names:
            self._forget(name)

    def kill(self, name: str) -> None:
        """End a worker that does not leave its world; that it is lost is heard of later."""
        ray.kill(self._actors[name])

    def make_world(self, names: Sequence[str]) -> HorovodWorld:
        """Let the workers `names`, in the order of their ranks, train together."""
        assert self.world is None, "one world after the other"
        self._num_worlds += 1
        rendezvous = Rendezvous(self._address, names) if len(names) > 1 else None
        self.world = HorovodWorld(number=self._num_worlds, names=tuple(names), rendezvous=rendezvous)
        for name, world in zip(names, self._worlds(names), strict=True):
            place = RankAssignment(
                number=self._num_worlds, world=world, host=name, rendezvous=rendezvous.place if rendezvous else None
            )
            told = self._actors[name].train.remote(place)
            self._hear(told, name, partial(_answered, name, self._num_worlds))
        veterans = {name: replace(self.members[name], is_veteran=True) for name in names}
        self.members = veterans | {name: each for name, each in self.members.items() if name not in veterans}
        return self.world

    def end_world(self) -> None:
        """The world is over: all members have left it or died."""
        assert self.world is not None
        assert not self.world.silent
        self.world.close()
        self.world = None

    def hear(self, wait_s: float) -> Message | None:
        """What a worker said, noted in `members` and `world`; None if nobody says anything new for `wait_s` seconds."""
        self._look_for_rooms()
        self._end_who_should_be_gone()
        try:
            message = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            return None
        return message if self._note(message) else None

    def close(self) -> None:
        """End all workers, and wait until the last of them is gone."""
        for name in list(self.members):
            self._forget(name)
        deadline = time.monotonic() + END_S
        while self._lines.names and time.monotonic() < deadline:
            self.hear(CLOSE_POLL_S)
        for name in list(self._rooms):
            self._give_back(name)
        if self.world is not None:
            self.world.close()
        self._lines.close()

    def _worlds(self, names: Sequence[str]) -> list[World]:
        nodes = [self.members[name].node for name in names]
        return [
            World(rank=rank, size=len(names), local_rank=nodes[:rank].count(node), node=node)
            for rank, node in enumerate(nodes)
        ]

    def _hear(self, reference: Any, name: str, message: Callable[[Any], Message]) -> None:
        def done(future: Any) -> None:
            # Ray tells of a death this way too, if often later than the lifeline does.
            error = future.exception()
            self._inbox.put(Lost(name=name, why=str(error)) if error else message(future.result()))

        reference.future().add_done_callback(done)

    def _note(self, message: Message) -> bool:
        """Whether the message is news: not of a worker that was dismissed, or was lost before."""
        name = message.name
        if isinstance(message, Lost) and name not in self._lines.names:
            self._give_back(name)
        if name not in self.members:
            return False
        match message:
            case Placed():
                self.members[name] = replace(self.members[name], node=message.node)
            case Warmed():
                self.members[name] = replace(self.members[name], state="warm")
            case Lost():
                if self.world is not None and name in self.world.silent:
                    self.world.lost[name] = time.monotonic()
                self._forget(name)
            case Entered(world=number) | Answered(world=number) if self.world and self.world.number == number:
                self.world.note(message)
        return True

    def _look_for_rooms(self) -> None:
        for name, member in self.members.items():
            if member.state == "asked" and placement_group_table(self._rooms[name])["state"] == "CREATED":
                self.members[name] = replace(member, state="placed")

    def _end_who_should_be_gone(self) -> None:
        """Whom Ray has declared dead, and left alive, holds a node's memory, and its GPU, for as long as the driver."""
        latest = time.monotonic() - GONE_S
        for name in self._lines.names:
            if self._dismissed_at.get(name, math.inf) < latest:
                self._lines.end(name)

    def _forget(self, name: str) -> None:
        """End a worker, also one that only lost its connection."""
        del self.members[name]
        self._dismissed_at[name] = time.monotonic()
        ray.kill(self._actors.pop(name))
        if name not in self._lines.names:
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        """Only once its process is gone: otherwise Ray would end it again, and not as quietly."""
        room = self._rooms.pop(name, None)
        if room is not None:
            remove_placement_group(room)


def _warmed(name: str, raised: WorkerError | None) -> Warmed:
    return Warmed(name=name, raised=raised)


def _answered(name: str, world: int, answer: Answer) -> Answered:
    return Answered(name=name, world=world, answer=answer)
