"""State of a worker process in its present world.

So it can leave that world and join the next.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

LEAVE_S = 4.0


class PeerLost(Exception):
    """A collective failed because another worker died.

    The train function is not the cause.
    """


class WorldMembership:
    """The train function in a thread of Ray Train."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Join a world. Called by the thread that trains."""
        self._thread = threading.current_thread()
        self._is_over = threading.Event()

    def wait_for_end(self) -> None:
        """Block the training thread once it has paused.

        Ray Train would take a return for the end of the run.
        """
        self._is_over.wait()

    def leave(self) -> bool:
        """Leave the world, and end its process group.

        Returns whether this process can take part in another one. It cannot if the train function does not return
        within `LEAVE_S`. It cannot either if the group could not be created: torch has counted that group, so it would
        look for the next one under another name than a new process does.
        """
        if self._thread is not None:
            self._is_over.set()
            self._thread.join(LEAVE_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        if not dist.is_initialized():
            return False
        dist.destroy_process_group()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        return True


membership = WorldMembership()
"""Membership of this process in its present world."""


def leave() -> bool:
    """Leave a world that has ended.

    Returns whether this process can take part in another one.
    """
    return membership.leave()
