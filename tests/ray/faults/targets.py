"""Processes of a cluster that this process has started: found by title, struck, and let go on later."""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

WORKERS = ("ray::RayTrainWorker", "ray::HorovodWorker")
CONTROLLER, COORDINATOR, CACHE = ("ray::TrainController",), ("ray::Coordinator",), ("ray::NodeCache",)
STORES, PART_STORES = ("ray::StoreActor",), ("ray::PartStoreActor",)
IDLE = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


def titled(*titles: str) -> list[psutil.Process]:
    """Descendants of this process with such titles. A process of somebody else is never among them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = each.cmdline()
            if words and words[0].startswith(titles) and not words[0].startswith(IDLE):
                found.append(each)
    return found


class Agenda:
    """Acts that are due later. `tick` does those that are due."""

    def __init__(self) -> None:
        self._acts: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._acts, (time.monotonic() + seconds, next(self._count), act))

    def tick(self, *, everything: bool = False) -> None:
        while self._acts and (everything or self._acts[0][0] <= time.monotonic()):
            heapq.heappop(self._acts)[2]()


def send(processes: Sequence[psutil.Process], number: int) -> list[psutil.Process]:
    """Send a signal. Returns those that have got it: a process that has ended, or ends, gets none."""
    hit = []
    for each in processes:
        with suppress(psutil.Error):
            if each.status() != psutil.STATUS_ZOMBIE:
                each.send_signal(number)  # asks first whether it is still that process
                hit.append(each)
    return hit


def freeze(agenda: Agenda, processes: Sequence[psutil.Process], seconds: float) -> bool:
    """Stop processes, and let them go on after `seconds`."""
    frozen = send(processes, signal.SIGSTOP)
    agenda.later(seconds, lambda: send(frozen, signal.SIGCONT))
    return bool(frozen)


def starve(agenda: Agenda, processes: Sequence[psutil.Process], seconds: float) -> bool:
    """Give processes a twentieth of their time, as at load 20."""
    for at in range(int(seconds / 0.2)):
        agenda.later(0.2 * at, lambda: send(processes, signal.SIGSTOP))
        agenda.later(0.2 * at + 0.19, lambda: send(processes, signal.SIGCONT))
    return bool(send(processes, 0))


def descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []
