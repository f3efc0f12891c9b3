"""A run that is started again and again, while its processes and its storage are struck."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import mounts
from tests.soak.case import patience
from tests.soak.faults.caches import fill
from tests.soak.faults.processes import Child

from forebay.errors import Fenced, ForebayError, StorageFull, WriteFailed
from forebay.training.checkpoint.files import checkpoint_files
from forebay.training.checkpoint.files import claim as claims
from forebay.training.runs.attempts import fence as fences
from forebay.training.runs.attempts import start as starts
from forebay.training.runs.attempts.files import AttemptFiles

ENDED_CODE, FENCED_CODE = WriteFailed.exit_status, Fenced.exit_status
CODES = (0, -signal.SIGKILL, ENDED_CODE, StorageFull.exit_status, FENCED_CODE)
POLL_S = 0.005


def code_of(error: ForebayError) -> int:
    """Exit code of a start that raised `error`. Code 1 is a traceback."""
    return FENCED_CODE if isinstance(error, Fenced) else ENDED_CODE


def hurry(*, machines: bool, ask_s: float = 0.02) -> None:
    """Shorten the waits of this process. With `machines`, it knows of the end of no other, as on another machine."""
    fences.ASK_S, fences.CONFIRM_S, fences.AGAIN_S = ask_s, 3.0, 0.02
    claims.GONE_S, starts.POLL_S, checkpoint_files.AGAIN_S = 1.0, 0.02, 0.02
    if machines:
        kernel = uuid.uuid4().hex
        claims._kernel = lambda: kernel


@dataclass
class Siege:
    """Attempts at one run, and the strikes on them. `attempt` is a start, in a process of its own.

    A start returns, or ends with the exit code of an error: none that is not an error of Forebay's, or its end by a
    signal that was not sent.
    """

    rng: random.Random
    attempt: Callable[[], object]
    run: Path
    share: Path
    takeover_s: float
    children: list[Child] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    heals: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    forgets: bool = False
    """Whether a strike may have taken away what was saved."""
    title: str = "attempt"

    def start(self) -> None:
        self.children.append(Child(self.attempt))

    def harms(self) -> list[Callable[[], bool]]:
        """Harms that may be drawn. A harm returns whether it could be done."""
        kinds = [self.kill, self.kill, self.stop, self.stop, self.race, self.moved, self.full, self.read_only]
        return [*kinds, self.removed, self.no_claim, self.damaged]

    def strike(self) -> None:
        """Do one harm, drawn at random, or two at once."""
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            harm = self.rng.choice(self.harms())
            if harm():
                self.struck[f"{self.title}: {harm.__name__.replace('_', ' ')}"] += 1

    def endure(self, strikes: int, most_s: float, limit_s: float) -> None:
        """Start the run, strike it, let it heal, and start it until a start returns its result."""
        self.start()
        for _ in range(strikes):
            until = time.monotonic() + self.rng.choice(
                [0.01, self.rng.uniform(0, most_s / 3), self.rng.uniform(0, most_s)]
            )
            while time.monotonic() < until:
                self.heal()
                self.reap()
                time.sleep(POLL_S)
            self.reap()
            if not self.children:
                self.start()
            self.strike()
        self.heal(everything=True)
        deadline = time.monotonic() + patience(limit_s)
        self._wait(lambda: not self.children, deadline)
        # One that has returned a result may have had it before its folder was removed.
        self.codes.clear()
        self._wait(lambda: 0 in self.codes and not self.children, deadline)
        self.heal(everything=True)

    def _wait(self, is_over: Callable[[], bool], deadline: float) -> None:
        while not is_over():
            assert time.monotonic() < deadline, f"no end: {dict(self.struck)}, codes {self.codes}"
            self.heal()
            self.reap()
            if not self.children and not is_over():
                self.start()
            time.sleep(POLL_S)

    def kill(self) -> bool:
        for child in self._some():
            child.kill()
        return bool(self.children)

    def stop(self) -> bool:
        """For longer than the limit of a takeover, or not."""
        for child in self._some():
            child.signal(signal.SIGSTOP)
            self._later(lambda child=child: self._go_on(child), 2 * self.takeover_s)
        return bool(self.children)

    def _go_on(self, child: Child) -> None:
        if child in self.children:
            child.signal(signal.SIGCONT)

    def race(self) -> bool:
        if len(self.children) > 4:
            return False
        for _ in range(self.rng.randint(1, 2)):
            self.start()
        return True

    def moved(self) -> bool:
        """A share that is unmounted, and mounted again."""
        run, aside = self.run, self.run.with_name("aside")
        if not run.exists() or aside.exists():
            return False
        with suppress(OSError):
            run.rename(aside)

        def back() -> None:
            if not run.exists():
                with suppress(OSError):  # a disk that is read-only now
                    aside.rename(run)
            if aside.exists():  # a start has made it again: two folders of one name, and what was is lost
                self.forgets = True
                shutil.rmtree(aside, ignore_errors=True)

        self._later(back, 1.5)
        return True

    def full(self) -> bool:
        if mounts.problem():
            return False
        filler = self.share / "somebody-elses"
        fill(filler)
        self._later(lambda: filler.unlink(missing_ok=True), 0.6)
        return True

    def read_only(self) -> bool:
        if mounts.problem() or not mounts.remount(self.share, "ro"):
            return False
        self._later(lambda: mounts.remount(self.share, "rw"), 0.6)
        return True

    def removed(self) -> bool:
        if self.rng.random() < 0.6:
            return False
        self.forgets = True
        with suppress(OSError):
            shutil.rmtree(self.run)
        return True

    def no_claim(self) -> bool:
        """The claim of the newest attempt is removed, and may come back."""
        with suppress(OSError, ForebayError):
            newest = AttemptFiles(str(self.run)).newest()
            if newest is None:
                return False
            path = Path(AttemptFiles(str(self.run)).claim_uri(newest.number))
            content = path.read_bytes()
            path.unlink()
            self.forgets = True

            def back() -> None:
                kept = self.share / "claim"
                try:
                    with suppress(FileExistsError, FileNotFoundError):
                        kept.write_bytes(content)  # whole or not at all: the disk may be full
                        os.link(kept, path)
                finally:
                    kept.unlink(missing_ok=True)

            if self.rng.random() < 0.7:
                self._later(back, 0.5)
            return True
        return False

    def damaged(self) -> bool:
        """The newest checkpoint is cut short, in place."""
        with suppress(OSError):  # it is deleted meanwhile
            found = sorted(self.run.glob("checkpoints/*/shard-*"), key=lambda path: path.parent.name)
            if not found:
                return False
            self.forgets = True
            os.truncate(found[-1], self.rng.randrange(max(1, found[-1].stat().st_size)))
            return True
        return False

    def heal(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        due = [act for at, act in self.heals if everything or at <= now]
        self.heals = [] if everything else [each for each in self.heals if each[0] > now]
        for act in due:
            try:
                act()
            except OSError:  # the disk is full or read-only as well
                self.heals.append((now, act))
        if everything and self.heals:
            time.sleep(POLL_S)
            self.heal(everything=True)

    def reap(self) -> None:
        """Collect those that ended, each with a code that says why."""
        for child in [child for child in self.children if not child.alive]:
            self.children.remove(child)
            code = child.join(5)
            self.codes.append(code)
            assert code in CODES, f"an attempt ended with code {code}"

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.join(5)
        self.children.clear()

    def _some(self) -> list[Child]:
        """One of them, or two at once."""
        return self.rng.sample(self.children, min(len(self.children), self.rng.choice([1, 1, 2])))

    def _later(self, act: Callable[[], object], most_s: float) -> None:
        self.heals.append((time.monotonic() + self.rng.uniform(0.02, most_s), act))
