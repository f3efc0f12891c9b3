"""Rendezvous of the ranks of one Horovod world. Every world gets a new server of Horovod's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

POLL_S = 0.05


class Assignments:
    """Answers for Horovod's elastic rendezvous server: the rank of each host. `slots` are Horovod's, by host."""

    def __init__(self, slots: Sequence[Any]) -> None:
        self._slots = {slot.hostname: slot for slot in slots}

    def record_ready(self, host: str, local_rank: int) -> None:
        """Do nothing: all members of a world are ready before it is created."""

    def get_slot_info(self, host: str, _local_rank: int) -> Any:
        """Slot of `host`, or Horovod's value for an unknown host."""
        from horovod.runner.common.util.hosts import INVALID_SLOT_INFO  # noqa: PLC0415 - an extra

        return self._slots.get(host, INVALID_SLOT_INFO)

    def register_worker_server(self, *_: object) -> None:
        """Do nothing: workers learn of changes at their commits, not from Horovod."""


class Rendezvous:
    """Server on `address` for one world of `hosts`, in the order of their ranks.

    A worker that was given up while it waited in an earlier world cannot disturb a later one: it knows another port.
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
        self.place: tuple[str, int] = (address, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": POLL_S}, name="forebay-rendezvous", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
