"""Bytes that a process has reserved ahead, for several blocks.

Two transactions for each block made 14 processes wait for each other: 14 to 27 ms of a block that takes 8 ms to decode.
With an allowance, one transaction accounts for many blocks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from forebay.data.cache.disk.accounts import Reservation, charge
from forebay.data.cache.disk.directory import PartFile

ALLOWANCE = "f" * 40
"""Key of the reservation of an allowance: it belongs to no block."""
_MOST_BYTES = 64 << 20
_LEAST_SHARE = 1024
MOST_FINISHED = 64
"""Blocks that are recorded at once."""


def allowance_bytes(quota_bytes: int) -> int:
    """Bytes to reserve ahead: a small share of the quota.

    >>> allowance_bytes(50 << 30) >> 20, allowance_bytes(1 << 40) >> 20
    (50, 64)
    """
    return min(_MOST_BYTES, quota_bytes // _LEAST_SHARE)


@dataclass(slots=True, eq=False)
class Allowance:
    """Bytes `left` of those that this process has reserved ahead.

    They are reserved for `part`, an empty file, with the bytes that are being written or not yet recorded.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    part: PartFile | None = None
    left: int = 0
    writing: dict[str, int] = field(default_factory=dict)
    finished: list[tuple[str, Reservation]] = field(default_factory=list)

    def take(self, name: str, reservation: Reservation) -> bool:
        """Take the bytes of a part file, if they are left.

        The caller holds `lock`.
        """
        nbytes = charge(reservation.bytes)
        if nbytes > self.left or len(self.finished) >= MOST_FINISHED:
            return False
        self.left -= nbytes
        self.writing[name] = nbytes
        return True

    def finish(self, name: str, reservation: Reservation) -> bool:
        """Note a finished block, to be recorded later.

        False if its bytes are not of this allowance.
        """
        with self.lock:
            if self.writing.pop(name, None) is None:
                return False
            self.finished.append((name, reservation))
            return True

    def give_back(self, name: str) -> bool:
        """Take back the bytes of a removed part file.

        False if they are not of this allowance.
        """
        with self.lock:
            nbytes = self.writing.pop(name, None)
            self.left += nbytes or 0
            return nbytes is not None
