"""Ended epochs and evaluations that a driver has received."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from forebay.events import EpochEnded, Evaluated

Report = EpochEnded | Evaluated
R = TypeVar("R", EpochEnded, Evaluated)


class KnownReports:
    """Which reports a driver has, with 8 bytes of each.

    A run of 10,000 epochs is resized: its new world asks here, and does not send all of them again.
    """

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._digests: dict[type[Report], list[tuple[int, bytes]]] = {EpochEnded: [], Evaluated: []}
        for report in reports:
            self.note(report)

    def note(self, report: Report) -> None:
        """Note a report. One that is not known replaces all from its epoch or step on."""
        if self.knows(report):
            return
        digests = self._digests[type(report)]
        del digests[bisect_left(digests, (_number(report), b"")) :]
        digests.append((_number(report), _digest(report)))

    def knows(self, report: Report) -> bool:
        """Whether an equal report was noted.

        Equal but for what a checkpoint does not keep: the samples of old evaluations, and the time of the checkpoint
        that ends the run.
        """
        digests, number = self._digests[type(report)], _number(report)
        index = bisect_left(digests, (number, b""))
        return digests[index : index + 1] == [(number, _digest(report))]


def unknown(reports: Sequence[R], knows: Callable[[R], bool]) -> Sequence[R]:
    """Return the reports that `knows` denies, in one question where it has the last one.

    `knows` must have all reports before one that it has.

    >>> unknown([1, 2, 3, 4], lambda report: report < 3)
    [3, 4]
    """
    if not reports or knows(reports[-1]):
        return ()
    return reports[bisect_left(reports, True, hi=len(reports) - 1, key=lambda report: not knows(report)) :]


def _number(report: Report) -> int:
    return report.epoch if isinstance(report, EpochEnded) else report.step


def _digest(report: Report) -> bytes:
    bare: Report
    if isinstance(report, EpochEnded):
        bare = replace(report, seconds=0.0, checkpoint_s=0.0)
    else:
        bare = replace(report, samples=())
    # Of a text: a loss that is NaN does not equal itself.
    return hashlib.blake2b(repr(bare).encode(), digest_size=8).digest()
