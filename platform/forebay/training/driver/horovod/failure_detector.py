"""Detects how a Horovod world ends.

From its workers' answers and from their silence.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import Hung
from forebay.training.driver.elastic.controller import WorldBroken, WorldEnd, WorldPaused, first_line
from forebay.training.driver.elastic.phase import Completed, Raised
from forebay.training.driver.elastic.pool import Lost, Message
from forebay.training.driver.horovod.liveness import Entered
from forebay.training.driver.horovod.worker import Answer, Broken
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome
from forebay.world import ranks_text

MEET_S = 1.0
"""How long after a death other workers may wait to meet the dead one. Horovod cannot cancel that wait."""
QUIET_S = 5.0
"""If no worker has died, how far apart in time the workers of a broken world may notice that it is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The worker has left world number `world`."""

    name: str
    world: int
    answer: Answer


class FailureDetector:
    """Watches one world to its end.

    From its creation until the last of its workers has left it or died.
    """

    def __init__(self, run: str, names: Sequence[str], hang_timeout_s: float) -> None:
        self._run, self._hang_timeout_s = run, hang_timeout_s
        self._rank = {name: rank for rank, name in enumerate(names)}
        self._entered: set[str] = set()
        self._first: Outcome | None = None  # of rank 0
        self._lost: set[str] = set()
        self._silent = dict(self._rank)  # neither answered nor lost, by rank
        self._raised: WorkerError | None = None
        self._broken: Broken | None = None
        self._broken_at: float | None = None
        self._left_at: float | None = None

    def note(self, message: Message) -> None:
        """Record a worker's message, or its loss."""
        match message:
            case Entered():
                self._entered.add(message.name)
            case Lost() if message.name in self._silent:
                self._lost.add(message.name)
                del self._silent[message.name]
                self._broken_at = self._broken_at or time.monotonic()
            case Answered():
                self._silent.pop(message.name, None)
                self._note_answer(message.name, message.answer)

    def _note_answer(self, name: str, answer: Answer) -> None:
        match answer:
            case Broken():
                self._broken = self._broken or answer
                self._broken_at = self._broken_at or time.monotonic()
            case Outcome():
                self._left_at = self._left_at or time.monotonic()
                if self._rank.get(name) == 0:
                    self._first = answer
            case WorkerError():
                self._raised = self._raised or answer

    @property
    def has_met(self) -> bool:
        """Whether all ranks have entered the world."""
        return len(self._entered) == len(self._rank)

    def stuck(self) -> list[str]:
        """Return workers that wait for a dead one.

        They have to be killed.
        """
        if not self._lost or self._silent_s <= MEET_S:
            return []
        return [name for name in self._silent if name not in self._entered]

    def end(self) -> WorldEnd | None:
        """Return the end of the world.

        None while it goes on. Raises `Hung` for workers that are silent for too long. Rank 0's answer counts first,
        because it saves the checkpoints.
        """
        if self._raised is not None:
            return Raised(error=self._raised)
        if self._silent:
            self._check_silence()
            return None
        if self._first is not None and self._first.resize_to is None:
            return Completed(stopped=self._first.stopped)
        if self._lost:
            return WorldBroken(error=f"lost {ranks_text('worker', self._ranks(self._lost))}")
        if self._broken is not None:
            return WorldBroken(error=f"the workers lost their connection{first_line(self._broken.raised.summary)}")
        return WorldPaused()

    @property
    def _silent_s(self) -> float:
        """Seconds since the world broke."""
        return 0.0 if self._broken_at is None else time.monotonic() - self._broken_at

    def _ranks(self, names: Iterable[str]) -> list[int]:
        return sorted(self._rank[name] for name in names)

    def _check_silence(self) -> None:
        if self._broken_at is None:
            # Once the others have left, a rank that hangs outside of a collective delays only the driver.
            if self._left_at is not None and time.monotonic() - self._left_at > self._hang_timeout_s:
                raise self._hung()
        # After a death, each other rank notices only when it next needs the dead one.
        elif self._silent_s > (self._hang_timeout_s if self._lost else QUIET_S):
            raise self._hung()

    def _hung(self) -> Hung:
        ranks = self._ranks(self._silent)
        return Hung(
            f"{ranks_text('rank', ranks)} of run {self._run!r} hung: the others got no answer (hang_timeout_s="
            f"{self._hang_timeout_s:g}), though it is alive. Look for a rank that takes another number of steps, "
            "waits for a lock, or reads without end; if a step may take that long, raise hang_timeout_s. Run "
            f"{self._run!r} again: it continues from its newest checkpoint, if it has one.",
            ranks=ranks,
            timeout_s=self._hang_timeout_s,
        )
