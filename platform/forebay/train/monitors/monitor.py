"""What watches training from within: monitors see every step of a rank, and judge before anything is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol

from forebay.errors import InvalidOption
from forebay.train.metric import Metric
from forebay.train.setup import TrainSetup


class Action(IntEnum):
    """What follows from a verdict; of several verdicts the gravest counts."""

    GO_ON = 0
    WARN = 1
    SKIP = 2
    """Go back to the newest commit, and train on without the batch that did it."""
    ROLL_BACK = 3
    """Go back to the newest commit, and train the same batches again."""
    STOP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a monitor makes of the steps since the last saved commit.

    `step` is the first bad step (as `Worker.step` counts it after its commit), None where no single step is to blame.
    """

    action: Action = Action.GO_ON
    reason: str = ""
    step: int | None = None


class LiveMonitor(Protocol):
    """A monitor at work on one rank, made anew whenever the train function is entered.

    Laws: `step` never waits for the device; `verdict` may. Ranks may judge differently: the worker makes it one.
    """

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """See one step, after `optimizer.step()`; `metrics` as the train function gave them to `commit`."""

    def verdict(self) -> Verdict:
        """Judge the steps since the last call. Asked at every saved commit, before it is saved."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """What it measured since the last call, for the record; names begin with the monitor's."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What must outlive the process; tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, also after going back to a commit; forget everything seen since."""


class Monitor(Protocol):
    """What a job holds: frozen, picklable."""

    def begin(self, training: TrainSetup) -> LiveMonitor:
        """Called by `Worker.setup`, on every rank."""
        ...


ActionWord = Literal["warn", "skip", "roll back", "stop"]

_ACTIONS = {"warn": Action.WARN, "skip": Action.SKIP, "roll back": Action.ROLL_BACK, "stop": Action.STOP}


def action_of(word: ActionWord | Action) -> Action:
    """The action that `word` stands for. Raises `InvalidOption` for any other word.

    >>> action_of("roll back").name
    'ROLL_BACK'
    """
    if isinstance(word, Action) and word in _ACTIONS.values():
        return word
    if word not in _ACTIONS:
        raise InvalidOption(f"action={word!r} is no action. Give one of {list(_ACTIONS)}.", action=word)
    return _ACTIONS[word]
