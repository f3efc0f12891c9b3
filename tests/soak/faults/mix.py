"""Loops that end early, and several faults at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.soak.case import CaseOutcome, fault
from tests.soak.dataset import SoakSetting, draw
from tests.soak.epoch import Seen, check, compare, epoch, held
from tests.soak.faults.caches import damage, flip, reopened
from tests.soak.faults.processes import Child
from tests.soak.faults.reads import PASSING, SLOW_DOWN
from tests.soak.guards import check_cache, check_quota
from tests.soak.strikes import Dice, reads

import forebay as fb
from forebay.errors import ForebayError


class Stop(Exception):
    """Raised by a training step."""


@fault("early-break", expected="equal: the next loop continues where this one ended", quick=2)
def early_break(rng: random.Random, folder: Path) -> CaseOutcome:
    """A trainer that sometimes leaves its loop: by break, by an exception, by a new iterator or a seek."""
    setting = draw(rng, folder, ranks=1)
    dice, seen = random.Random(rng.random()), Seen()
    with setting.loader(counters=seen.counters) as loader:
        while loader.epoch == setting.epoch:
            _some_steps(dice, loader, seen)
    check(setting, seen)
    check_cache(setting)
    return CaseOutcome("equal")


def _some_steps(dice: random.Random, loader: fb.Loader, seen: Seen) -> None:
    """Train until the loop ends, in one of several ways."""
    how = dice.choice(["break", "exception", "seek"])
    done = loader.cursor()
    try:
        for batch in loader:
            if how == "seek" and dice.random() < 0.2:
                break  # this batch is thrown away
            seen.steps.append((batch.position, batch.size, [held(batch)]))
            done = loader.cursor()
            if dice.random() < 0.2:
                if how == "exception":
                    raise Stop
                break
    except Stop:
        pass
    if how == "seek":
        loader.seek(done)


class Storm:
    """Several faults at once: strikes on reads, damage to blocks, other processes, all drawn from one generator."""

    def __init__(self, rng: random.Random, setting: SoakSetting) -> None:
        self._rng = random.Random(rng.random())
        self._setting = setting
        self._children: list[Child] = []
        self._dice = [Dice(rng, rng.choice([0.0, 0.1])), Dice(rng, rng.choice([0.0, 0.1])), Dice(rng, 0.1)]
        self._error = rng.choice(PASSING)
        names = ["damage", "clear", "client", "killed client", "quota", "verify"]
        self._strikes = rng.sample(names, rng.randint(2, 4)) if setting.cache.disk else []

    def read(self, _uri: str) -> None:
        """Called before each read."""
        failing, throttled, slow = self._dice
        if slow.hit():
            time.sleep(0.002)
        if failing.hit():
            raise self._error()
        if throttled.hit():
            raise OSError(SLOW_DOWN)

    def step(self, _step: int) -> None:
        """Called before each step."""
        if not self._strikes or self._rng.random() > 0.2:
            return
        strike = self._rng.choice(self._strikes)
        setting, actions = self._setting, self._actions()
        if strike in ("client", "killed client") and len(self._children) >= 2:
            return
        actions[strike](setting)

    def _actions(self) -> dict[str, Callable[[SoakSetting], object]]:
        return {
            "damage": lambda setting: damage(self._rng, setting, flip(self._rng)),
            "clear": lambda setting: setting.disk.clear(),
            "client": self._start_client,
            "killed client": lambda setting: self._start_client(setting, kill=True),
            "quota": lambda setting: check_quota(setting.disk),
            "verify": lambda setting: reopened(setting).disk.verify(),
        }

    def _start_client(self, setting: SoakSetting, *, kill: bool = False) -> None:
        child = Child(lambda: _quiet_epoch(setting))
        self._children.append(child)
        if kill:
            time.sleep(self._rng.random() * 0.05)
            child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.join()


def _quiet_epoch(setting: SoakSetting) -> None:
    with suppress(ForebayError):
        check(setting, epoch(setting))


@fault("several-at-once", expected="equal, or a clear error", share=2.0, quick=3)
def several_at_once(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    with ExitStack() as stack:
        storm = stack.enter_context(Storm(rng, setting))
        stack.enter_context(reads(storm.read))
        for _ in range(rng.randint(1, 2)):
            outcome = compare(setting, lambda: epoch(setting, storm.step), ForebayError, names=str(folder))
    check_cache(setting, may_be_damaged=True)
    return outcome
