"""Worker process of the local driver.

It trains as one rank, with one connection to its driver.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch

from forebay.data.cache.source import LocalCache
from forebay.events import EpochEnded, Evaluated, Event, Request
from forebay.runtime.foreign_code import begin, outcome_of
from forebay.training.checkpoint.local_store import open_local_checkpoints
from forebay.training.collectives.torch_collective import process_group, set_nccl_defaults
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome, work
from forebay.training.job.resources import device_of, use_device
from forebay.training.runs.worker_spec import unpack
from forebay.training.state.known_reports import KnownReports
from forebay.training.worker.worker import Worker
from forebay.world import World

NODE = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The driver's first message.

    The rank of the worker, the rendezvous of the ranks, the pickled `WorkerSpec`, and what the driver knows by rank 0.
    """

    world: World
    rendezvous: Path
    payload: bytes
    known: KnownReports


@dataclass(frozen=True, slots=True)
class Sync:
    """Question of rank 0 for the request.

    It is answered once callbacks have seen its events.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The driver's answer to `Sync`."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The worker's last message when its train function has returned."""

    outcome: Outcome


Message = Event | Sync | Done | WorkerError
Instruction = Start | Request | Synced
"""Messages of the driver: first `Start`, then the request at each change and at each `Sync`."""


class DriverLink:
    """The worker's end of the connection, a `Reporter`.

    Ends this process when the driver has ended.
    """

    def __init__(self, connection: Connection, known: KnownReports) -> None:
        self._connection, self._known = connection, known
        self._request = Request()
        self._synced: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # A thread sends, so that a slow driver never holds up a training step.
        self._sender = begin(threading.Thread(target=self._send, name="forebay-send", daemon=True))
        begin(threading.Thread(target=self._listen, name="forebay-listen", daemon=True))

    def report(self, *events: Message) -> None:
        for event in events:
            self._outbox.put(event)
            if isinstance(event, EpochEnded | Evaluated):
                self._known.note(event)

    def request(self) -> Request:
        return self._request

    def synced_request(self) -> Request:
        # On the same connection, behind all earlier events: the driver processes messages in order.
        self._outbox.put(Sync())
        return self._synced.get()

    def knows(self, report: EpochEnded | Evaluated) -> bool:
        return self._known.knows(report)

    def close(self) -> None:
        """Return when everything reported has left this process."""
        self._outbox.put(None)
        self._sender.join()

    def _send(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # the driver has ended, as in `_listen`

    def _listen(self) -> None:
        try:
            while True:
                match self._connection.recv():
                    case Synced(request=request):
                        self._synced.put(request)
                    case Request() as request:
                        self._request = request
        except (EOFError, OSError):
            os._exit(1)  # the driver has ended: no process would read this one's results


def main(descriptor: int) -> None:
    """Entry of the process. `descriptor` is the inherited socket."""
    connection = Connection(descriptor)
    try:
        start = connection.recv()
    except (EOFError, OSError):
        os._exit(1)  # the driver was interrupted while it started this process
    assert isinstance(start, Start)
    with closing(DriverLink(connection, start.known)) as link:
        # Catches everything, SystemExit too: the driver judges it.
        if error := outcome_of(lambda: link.report(Done(outcome=_train(start, link)))).error:
            _tell_and_stay(error, start, link)


def _train(start: Start, link: DriverLink) -> Outcome:
    spec = unpack(start.payload)
    torch.set_num_threads(max(1, int(spec.resources.cpus)))
    cache = None if spec.cache is None else LocalCache(spec.cache, num_processes=start.world.size)
    set_nccl_defaults(spec.hang_timeout_s)
    device = use_device(device_of(spec.resources, start.world.local_rank))
    ranks = process_group(start.world, start.rendezvous, device=device, timeout_s=spec.hang_timeout_s)
    with closing(open_local_checkpoints(spec.checkpoint_config)) as checkpoints, ranks as collective:
        outcome = outcome_of(lambda: work(spec, Worker(spec.train_spec, collective, cache, checkpoints, link), link))
        if outcome.error is not None:  # reported before the process group is left
            _tell_and_stay(outcome.error, start, link)
        return outcome.result()


def _tell_and_stay(error: BaseException, start: Start, link: DriverLink) -> NoReturn:
    """Report the error, and wait for the driver.

    The driver ends this process. If this process left, or only left the process group, the connections of the other
    ranks would break. Their errors would then hide this one.
    """
    link.report(WorkerError.of(error, start.world.rank))
    while True:
        threading.Event().wait()
