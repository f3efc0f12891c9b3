"""How one Horovod world ends: found out from its workers' answers, and from their silence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.driver.elastic.controller import WorldBroken, WorldEnd, WorldPaused, first_line
from forebay.driver.elastic.phase import Completed, Raised
from forebay.driver.elastic.pool import Lost, Message
from forebay.driver.horovod.liveness import Entered
from forebay.driver.horovod.worker import Answer, Broken
from forebay.driver.worker_error import WorkerError
from forebay.driver.worker_main import Outcome
from forebay.errors import Hung

MEET_S = 1.0
"""How long after a death others may still wait for the dead worker to meet them; Horovod cannot call them back."""
QUIET_S = 5.0
"""How long the members of a world that came apart may differ in noticing it, if none of them has died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The worker has left world number `world`."""

    name: str
    world: int
    answer: Answer


class FailureDetector:
    """Watches one world, from its making to the moment when the last of its workers has left it or died."""

    def __init__(self, run: str, names: Sequence[str], hang_timeout_s: float) -> None:
        self._run, self._names, self._hang_timeout_s = run, tuple(names), hang_timeout_s
        self._entered: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._lost: set[str] = set()
        self._broken_at: float | None = None
        self._left_at: float | None = None

    def note(self, message: Message) -> None:
        """Take in what a worker of this world has told, or that it is lost."""
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
        """Whether all ranks have met."""
        return len(self._entered) == len(self._names)

    def stuck(self) -> list[str]:
        """Workers that wait to meet a dead one, and have to be ended."""
        if not self._lost or self._silent_s <= MEET_S:
            return []
        return [name for name in self._silent if name not in self._entered]

    def end(self) -> WorldEnd | None:
        """How the world has ended, once it has. Raises `Hung` for workers that are silent for too long.

        Rank 0's answer counts first, for it saves the checkpoints.
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
            return WorldBroken(error=f"the workers lost touch{first_line(broken[0].raised.summary)}")
        return WorldPaused()

    @property
    def _silent(self) -> list[str]:
        """Workers that neither answered nor are lost, by rank."""
        return [name for name in self._names if name not in self._answers and name not in self._lost]

    @property
    def _silent_s(self) -> float:
        """Seconds since the world came apart."""
        return 0.0 if self._broken_at is None else time.monotonic() - self._broken_at

    def _ranks(self, names: Sequence[str] | set[str]) -> list[int]:
        return sorted(self._names.index(name) for name in names)

    def _check_silence(self) -> None:
        if self._broken_at is None:
            # A rank that hangs outside of a collective keeps no other waiting once these are done, except the driver.
            if self._left_at is not None and time.monotonic() - self._left_at > self._hang_timeout_s:
                raise self._hung()
        # After a death, each of the others notices when it next needs the dead one.
        elif self._silent_s > (self._hang_timeout_s if self._lost else QUIET_S):
            raise self._hung()

    def _hung(self) -> Hung:
        ranks = self._ranks(self._silent)
        return Hung(
            f"{_named('rank', ranks)} of run {self._run!r} hung: the others waited in vain (hang_timeout_s="
            f"{self._hang_timeout_s:g}), though the process lives. Look for a rank that takes another number of steps, "
            "waits for a lock, or reads without an end; if a step may take that long, raise hang_timeout_s. The newest "
            f"checkpoint is kept: run {self._run!r} again to continue.",
            ranks=ranks,
            timeout_s=self._hang_timeout_s,
        )


def _named(noun: str, ranks: Sequence[int]) -> str:
    return f"{noun}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
