"""Protocol of monitors.

They observe every step of a rank, and judge the steps before a checkpoint is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Protocol

from forebay.errors import InvalidOption
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup


class Action(IntEnum):
    """Consequence of a verdict. The gravest of several verdicts counts."""

    GO_ON = 0
    WARN = 1
    SKIP = 2
    """Go back to the newest checkpoint, and continue without the batch at fault."""
    ROLL_BACK = 3
    """Go back to the newest checkpoint, and train the same batches again."""
    STOP = 4
    FAIL = 5
    """End the run with `Diverged`. Its exit code is not 0, and the checkpoints before stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A monitor's judgement of the steps since a checkpoint.

    Attributes:
        action: Requested consequence.
        reason: Text for events and errors, empty for `Action.GO_ON`.
        step: First bad step, as `Worker.step` counts it after its commit. None if no single step is to blame.
        rows: Rows that the event names: "own" if this rank's own rows show it, such as by their loss, "all" for what
            all ranks share, such as gradients. With "own" of some ranks, only their rows are named.
    """

    action: Action = Action.GO_ON
    reason: str = ""
    step: int | None = None
    rows: Literal["none", "own", "all"] = "none"


class LiveMonitor(Protocol):
    """Active monitor on one rank.

    Built each time the train function is entered.

    Laws: `step` never waits for the device. `verdict` may wait. Ranks may judge differently: the worker combines
    verdicts.
    """

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """Observe one step, after `optimizer.step()`.

        With the metrics that the train function gave to `commit`.
        """

    def verdict(self) -> Verdict:
        """Judge the steps since the last call.

        Called before every checkpoint is saved.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return measurements since the last call, for the record.

        Their names begin with the monitor's name.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values to save."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, also after a roll-back.

        Discards everything observed since.
        """


class Monitor(Protocol):
    """Configuration of a monitor, held by a job: frozen, picklable.

    One that reads whole parameters or gradients has a class attribute `needs_whole = True`. A job with a strategy that
    splits them refuses it. One that never asks to go back may have an attribute `goes_back = False`. Without another
    one, no checkpoint is saved before the first step.
    """

    def attach(self, setup: TrainSetup) -> LiveMonitor:
        """Return the active monitor.

        Called by `Worker.setup`, on every rank.
        """
        ...


ActionWord = Literal["warn", "skip", "roll back", "stop", "fail"]

_ACTIONS = {
    "warn": Action.WARN,
    "skip": Action.SKIP,
    "roll back": Action.ROLL_BACK,
    "stop": Action.STOP,
    "fail": Action.FAIL,
}


def action_of(word: ActionWord | Action) -> Action:
    """Return the action of the name `word`.

    Raises `InvalidOption` for an unknown name.

    >>> action_of("roll back").name
    'ROLL_BACK'
    """
    if isinstance(word, Action) and word in _ACTIONS.values():
        return word
    if word not in _ACTIONS:
        raise InvalidOption(f"action={word!r} is not an action. Give one of {list(_ACTIONS)}.", action=word)
    return _ACTIONS[word]
