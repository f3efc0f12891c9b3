"""Horovod as a backend of the elastic core.

It starts the processes, and connects the ranks of a world.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forebay.runtime.foreign_code import begin
from forebay.training.driver.elastic.controller import WorldEnd
from forebay.training.driver.elastic.pool import Lost, Message, SpawnedWorker, WorkerPool
from forebay.training.driver.horovod.failure_detector import Answered, FailureDetector
from forebay.training.driver.horovod.liveness import Entered, LivenessServer
from forebay.training.driver.horovod.worker import Answer, HorovodWorker, SpawnRequest
from forebay.training.driver.horovod.world import RankAssignment

POLL_S = 0.05


class HorovodProcesses:
    """`Processes` that keep a connection to the driver.

    When the driver or a process dies, the connection closes.
    """

    def __init__(
        self, coordinator: ActorHandle, payload: bytes, bundle: Mapping[str, float], inbox: queue.SimpleQueue[Message]
    ) -> None:
        self.address = ray.util.get_node_ip_address()
        self._server = LivenessServer(self.address, inbox.put)
        self._coordinator, self._payload, self._bundle = coordinator, ray.put(payload), bundle

    def spawn(self, name: str, group: PlacementGroup) -> SpawnedWorker:
        request = SpawnRequest(
            name=name, coordinator=self._coordinator, payload=[self._payload], address=self._server.address
        )
        actor = (
            ray.remote(HorovodWorker)
            .options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle["GPU"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group),
            )
            .remote(request)
        )
        return SpawnedWorker(actor=actor, ready=actor.warm_up.remote())

    @property
    def running(self) -> Collection[str]:
        return self._server.names

    def stop(self, name: str) -> None:
        self._server.end(name)

    def close(self) -> None:
        self._server.close()


class HorovodBackend:
    """`Backend` with a rendezvous server on the driver's node.

    Every world gets a new server.
    """

    def __init__(self, run: str, pool: WorkerPool, address: str, hang_timeout_s: float) -> None:
        self._run, self._pool, self._address, self._hang_timeout_s = run, pool, address, hang_timeout_s
        self._number = 0
        self._rendezvous: Rendezvous | None = None
        self._detector = FailureDetector(run, (), hang_timeout_s)

    def begin(self, names: Sequence[str]) -> None:
        self.close()
        self._number += 1
        self._detector = FailureDetector(self._run, names, self._hang_timeout_s)
        self._rendezvous = Rendezvous(self._address, names) if len(names) > 1 else None
        meeting = None if self._rendezvous is None else self._rendezvous.bound_to
        for name, world in zip(names, self._pool.form_world(names), strict=True):
            assignment = RankAssignment(number=self._number, world=world, host=name, rendezvous=meeting)
            answer = self._pool.actor(name).train.remote(assignment)
            self._pool.listen(name, answer, partial(_answered, name, self._number))

    def note(self, message: Message) -> None:
        match message:
            case Entered(world=number) | Answered(world=number) if number != self._number:
                return
            case Entered() | Answered() | Lost():
                self._detector.note(message)
        if self._detector.has_met:
            self.close()

    def end_of_world(self) -> WorldEnd | None:
        for name in self._detector.stuck():
            self._pool.kill(name)
        return self._detector.end()

    def close(self) -> None:
        """Close the rendezvous of the present world.

        No rank can join it any more.
        """
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None


def _answered(name: str, world: int, answer: Answer) -> Answered:
    return Answered(name=name, world=world, answer=answer)


class Assignments:
    """Answers for Horovod's elastic rendezvous server.

    It asks for the rank of each host. `slots` are Horovod's, by host.
    """

    def __init__(self, slots: Sequence[Any]) -> None:
        self._slots = {slot.hostname: slot for slot in slots}

    def record_ready(self, host: str, local_rank: int) -> None:
        """Do nothing.

        All members of a world are ready before it is created.
        """

    def get_slot_info(self, host: str, _local_rank: int) -> Any:
        """Slot of `host`, or Horovod's value for an unknown host."""
        from horovod.runner.common.util.hosts import INVALID_SLOT_INFO  # noqa: PLC0415 - an extra

        return self._slots.get(host, INVALID_SLOT_INFO)

    def register_worker_server(self, *_: object) -> None:
        """Do nothing.

        Workers learn of changes at their commits, not from Horovod.
        """


class Rendezvous:
    """Run a rendezvous server for one world.

    On `address`, for `hosts` in the order of their ranks. A worker that was given up while it waited in an earlier
    world cannot disturb a later one: it knows another port.
    """

    def __init__(self, address: str, hosts: Sequence[str]) -> None:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments  # noqa: PLC0415 - an extra
        from horovod.runner.elastic.rendezvous import create_rendezvous_handler  # noqa: PLC0415 - an extra
        from horovod.runner.http.http_server import RendezvousHTTPServer  # noqa: PLC0415 - an extra

        slots = get_host_assignments([HostInfo(host, 1) for host in hosts], len(hosts), len(hosts))
        self._server = RendezvousHTTPServer((address, 0), create_rendezvous_handler(Assignments(slots)), 0)
        # A pending request of a process that was killed must not delay the shutdown.
        self._server.daemon_threads = True
        self._server.init(slots)
        self.bound_to: tuple[str, int] = (address, self._server.server_port)
        serve = partial(self._server.serve_forever, poll_interval=POLL_S)
        self._thread = begin(threading.Thread(target=serve, name="forebay-rendezvous", daemon=True))

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
