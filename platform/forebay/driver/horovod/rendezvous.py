"""Where the ranks of one Horovod world meet: Horovod's own rendezvous, of which every world gets a new one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

POLL_S = 0.05


class Assignments:
    """What Horovod's elastic rendezvous asks its driver: who has which rank. `slots` are Horovod's, by host."""

    def __init__(self, slots: Sequence[Any]) -> None:
        self._slots = {slot.hostname: slot for slot in slots}

    def record_ready(self, host: str, local_rank: int) -> None:
        """Nobody is waited for here: all members of a world are there before it is made."""

    def get_slot_info(self, host: str, _local_rank: int) -> Any:
        """The rank of `host`, or Horovod's word for none."""
        from horovod.runner.common.util.hosts import INVALID_SLOT_INFO  # noqa: PLC0415 - an extra

        return self._slots.get(host, INVALID_SLOT_INFO)

    def register_worker_server(self, *_: object) -> None:
        """Workers are told of changes at their commits, not by Horovod."""


class Rendezvous:
    """A server on `address`, for one world of `hosts` in the order of their ranks.

    A worker that was given up while it waited to meet the others of an earlier world cannot meddle with a later one:
    it knows another port.
    """

    def __init__(self, address: str, hosts: Sequence[str]) -> None:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments  # noqa: PLC0415 - an extra
        from horovod.runner.elastic.rendezvous import create_rendezvous_handler  # noqa: PLC0415 - an extra
        from horovod.runner.http.http_server import RendezvousHTTPServer  # noqa: PLC0415 - an extra

        slots = get_host_assignments([HostInfo(host, 1) for host in hosts], len(hosts), len(hosts))
        self._server = RendezvousHTTPServer((address, 0), create_rendezvous_handler(Assignments(slots)), 0)
        # A request of a process that was killed in its midst must not hold up the end.
        self._server.daemon_threads = True
        self._server.init(slots)
        self.place: tuple[str, int] = (address, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_S}, name="forebay-rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Meet no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
