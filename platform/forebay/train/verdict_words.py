"""The words in which a job says what shall follow when a monitor finds something."""

from __future__ import annotations

from typing import Literal

from forebay.errors import InvalidOption
from forebay.train.monitor import Action

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
