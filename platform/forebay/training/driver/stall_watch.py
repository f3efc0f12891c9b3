"""Watch of one rank: it says where its train function stands still."""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.events import Reporter, Warned
from forebay.runtime.foreign_code import begin
from forebay.training.driver.rank_stack import kept_stack, place_of
from forebay.training.worker.worker import Worker

_WAITS = re.compile(r"/torch/(distributed|autograd)/|/horovod/|forebay/training/collectives/")
"""Files of code in which a rank waits for the others."""
SHARE = 0.8
"""Share of the job's `hang_timeout_s` after which a rank is reported. At its end, the others give up."""
LOCK_SHARE = 0.6
"""Share after which a process that runs no Python keeps its stacks. Before the driver looks for them."""


@contextmanager
def stall_told(worker: Worker, reporter: Reporter, hang_timeout_s: float, run: str) -> Iterator[None]:
    """Report that this rank takes no step, and where.

    This lasts for the length of the block. A rank that only waits for others is silent, except the first one. A rank
    that runs no Python leaves its stack for the driver.
    """
    ended, here = threading.Event(), threading.get_ident()

    def watch(alive: Callable[[int], None]) -> None:
        def step() -> int:
            alive(worker.step)
            return worker.step

        for seconds in _stalls(step, ended, SHARE * hang_timeout_s):
            frames = [*traceback.extract_stack(sys._current_frames()[here])]  # noqa: SLF001 - documented
            rank, waits = worker.world.rank, any(_WAITS.search(each.filename) for each in frames)
            if not waits or rank == 0:
                does = "waits for other ranks in" if waits else "is in"
                told = f"rank {rank} has taken no step for {seconds:.0f} s and {does} {place_of(frames)}"
                reporter.report(Warned(reason=told, step=worker.step, rank=None if waits else rank))

    with kept_stack(run, worker.world.rank, LOCK_SHARE * hang_timeout_s) as alive:
        thread = begin(threading.Thread(target=watch, args=(alive,), name="forebay-stall", daemon=True))
        try:
            yield
        finally:
            ended.set()
            thread.join(1.0)


def _stalls(step_of: Callable[[], int], ended: threading.Event, limit_s: float) -> Iterator[float]:
    """Yield once for each step after which none follows for `limit_s` seconds, with the seconds."""
    step, since, is_told = step_of(), time.monotonic(), False
    while not ended.wait(min(limit_s / 8, 5.0)):
        now, seen = time.monotonic(), step_of()
        if seen != step:
            step, since, is_told = seen, now, False
        elif not is_told and now - since >= limit_s:
            is_told = True
            yield now - since
