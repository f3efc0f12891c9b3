"""Worker processes of the local driver.

From their start to the cause of their end.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path

from forebay.events import Event, Request
from forebay.runtime.fork_server import ForkServer, ForkServerLost, describe_exit
from forebay.training.driver.local.child import NODE, Done, Instruction, Message, Start, Sync, Synced
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome
from forebay.training.state.known_reports import KnownReports
from forebay.world import World

EXIT_S = 10.0
# A rank whose peer was killed raises too, and its error may arrive first. The peer's end of file follows within this
# time.
PEER_S = 1.0
POLL_S = 0.1


class WorkerLost(Exception):
    """A worker process ended without a result."""


class WorkerRaised(Exception):
    """A train function raised, while all workers were alive."""

    def __init__(self, raised: WorkerError) -> None:
        super().__init__(raised.summary)
        self.raised = raised


class WorkerProcess:
    """One rank's process, and the driver's connection to it."""

    def __init__(self, rank: int, server: ForkServer, folder: str) -> None:
        self.rank = rank
        self._server = server
        try:
            self.connection, self.pid = server.fork(folder)
        except ForkServerLost as lost:
            raise WorkerLost(str(lost)) from None
        except OSError as error:
            raise WorkerLost(f"a worker process cannot start ({error})") from None

    def send(self, message: Instruction) -> None:
        """Send to the worker.

        Its death is found by `RankProcesses.events`, not here.
        """
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return

    def how_it_ended(self) -> str:
        """Describe how a disconnected process ended.

        Its exit code or signal, as text for a message.
        """
        code = self._server.wait(self.pid, EXIT_S)
        return "closed its connection" if code is None else describe_exit(code)

    def end(self) -> None:
        """Kill the process, and wait for it.

        Leaves no zombie.
        """
        self.connection.close()
        self._server.kill(self.pid)

    def leave(self) -> None:
        """Wait for the end of a process with finished work.

        If a thread of the train function hangs, `end` follows after `EXIT_S`.
        """
        self._server.wait(self.pid, EXIT_S)


class RankProcesses:
    """All ranks of one world."""

    def __init__(self, members: list[WorkerProcess]) -> None:
        self._members = members
        self._sent = Request()
        self.outcome = Outcome()

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [member.pid for member in self._members]

    def send_request(self, request: Request) -> None:
        """Send a new request to rank 0.

        All ranks obey it at the next checkpoint.
        """
        if request != self._sent:
            self._sent = request
            self._members[0].send(request)

    def answer_sync(self, request: Request) -> None:
        """Answer rank 0, which waits for the request."""
        self._members[0].send(Synced(request=request))

    def events(self) -> Iterator[Event | Sync | None]:
        """Yield the events of the workers until all are done.

        Yields None when there is none for a while. Raises `WorkerLost` when a process died, and `WorkerRaised` when a
        train function raised.
        """
        silent = {member.connection: member for member in self._members}
        raised: list[WorkerError] = []
        deadline = float("inf")
        while silent:
            for ready in wait(list(silent), timeout=POLL_S):
                assert isinstance(ready, Connection)
                match _receive(ready, silent[ready]):
                    case WorkerError() as failure:
                        raised.append(failure)
                        deadline = min(deadline, time.monotonic() + (PEER_S if len(silent) > 1 else 0))
                        del silent[ready]
                    case Done() as done:
                        # All ranks have the same outcome.
                        self.outcome = done.outcome
                        del silent[ready]
                    case event:
                        yield event
            if raised and (time.monotonic() >= deadline or not silent):
                raise WorkerRaised(_cause(raised))
            yield None
        # After a resize, a rank that leaves has nothing left to do, and the next world waits.
        for member in self._members if self.outcome.resize_to is None else ():
            member.leave()


def _cause(raised: list[WorkerError]) -> WorkerError:
    """Return the error that caused the others.

    The first one, unless another is Forebay's own: the others lost their connection.
    """
    return next((each for each in raised if each.summary.startswith("forebay.errors.")), raised[0])


def _receive(connection: Connection, member: WorkerProcess) -> Message:
    try:
        return connection.recv()  # type: ignore[no-any-return]
    except (EOFError, OSError):  # also within a message
        raise WorkerLost(f"worker {member.rank} {member.how_it_ended()}") from None


@contextmanager
def worker_processes(server: ForkServer, size: int, payload: bytes, known: KnownReports) -> Iterator[RankProcesses]:
    """Fork `size` workers on this machine, which report what is not in `known`.

    All have ended when the block is left, also by an exception.
    """
    members: list[WorkerProcess] = []
    with tempfile.TemporaryDirectory(prefix="forebay-") as folder:
        rendezvous = Path(folder) / "ranks"
        server.start()
        try:
            members.extend(WorkerProcess(rank, server, folder) for rank in range(size))
            for rank, member in enumerate(members):
                world = World(rank=rank, size=size, local_rank=rank, node=NODE)
                told = known if world.is_first else KnownReports()
                member.send(Start(world=world, rendezvous=rendezvous, payload=payload, known=told))
            yield RankProcesses(members)
        finally:
            for member in members:
                member.end()
