"""Detects how a Horovod world ends.

From its workers' answers and from their silence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import Hung
from forebay.training.driver.elastic.controller import WorldBroken, WorldEnd, WorldPaused, first_line
from forebay.training.driver.elastic.phase import Completed, Raised
from forebay.training.driver.elastic.pool import Lost, Message
from forebay.training.driver.horovod.liveness import Entered
from forebay.training.driver.horovod.worker import Answer, Broken
from forebay.training.driver.worker_error import WorkerError
from forebay.training.driver.worker_main import Outcome

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
        self._run, self._names, self._hang_timeout_s = run, tuple(names), hang_timeout_s
        self._entered: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._lost: set[str] = set()
        self._broken_at: float | None = None
        self._left_at: float | None = None

    def note(self, message: Message) -> None:
        """Record a worker's message, or its loss."""
        match message:
            case Entered():
                self._entered.add(message.name)
            case Lost() if message.name in self._silent:
                self._lost.add(message.name)
                self._broken_at = self._broken_at or time.monotonic()
            case Answered():
                self._answers[message.name] = message.answer
                if isinstance(message.answer, Broken):
                    self._broken_at = self._broken_at or time.monotonic()
                elif isinstance(message.answer, Outcome):
                    self._left_at = self._left_at or time.monotonic()

    @property
    def has_met(self) -> bool:
        """Whether all ranks have entered the world."""
        return len(self._entered) == len(self._names)

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
        for answer in self._answers.values():
            if isinstance(answer, WorkerError):
                return Raised(error=answer)
        if self._silent:
            self._check_silence()
            return None
        first = self._answers.get(self._names[0])
        if isinstance(first, Outcome) and first.resize_to is None:
            return Completed(stopped=first.stopped)
        if self._lost:
            return WorldBroken(error=f"lost {_named('worker', self._ranks(self._lost))}")
        broken = [answer for answer in self._answers.values() if isinstance(answer, Broken)]
        if broken:
            return WorldBroken(error=f"the workers lost their connection{first_line(broken[0].raised.summary)}")
        return WorldPaused()

    @property
    def _silent(self) -> list[str]:
        """Workers that neither answered nor are lost, by rank."""
        return [name for name in self._names if name not in self._answers and name not in self._lost]

    @property
    def _silent_s(self) -> float:
        """Seconds since the world broke."""
        return 0.0 if self._broken_at is None else time.monotonic() - self._broken_at

    def _ranks(self, names: Sequence[str] | set[str]) -> list[int]:
        return sorted(self._names.index(name) for name in names)

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
            f"{_named('rank', ranks)} of run {self._run!r} hung: the others got no answer (hang_timeout_s="
            f"{self._hang_timeout_s:g}), though it is alive. Look for a rank that takes another number of steps, "
            "waits for a lock, or reads without end; if a step may take that long, raise hang_timeout_s. Run "
            f"{self._run!r} again: it continues from its newest checkpoint, if it has one.",
            ranks=ranks,
            timeout_s=self._hang_timeout_s,
        )


def _named(noun: str, ranks: Sequence[int]) -> str:
    return f"{noun}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
