"""Hyperparameters within saved states: left out where another run is to go on with its own, and filled in there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

SCHEDULED = "scheduled"
"""In a parameter group without hyperparameters: its learning rate as a part of the rate that its scheduler began at."""
BASE_RATES = ("base_lrs", "_last_lr")


def left_out(state: Any) -> Any:
    """The state of an optimizer without what its configuration says, and that of a scheduler without its rates.

    What was learned stays: moments, and how far a schedule has come. Any other state is returned as it is.
    """
    if not isinstance(state, Mapping):
        return state
    if "param_groups" in state:
        return {**state, "param_groups": [_bare(group) for group in state["param_groups"]]}
    if "last_epoch" in state:
        bare = {name: value for name, value in state.items() if name not in BASE_RATES}
        # SequentialLR and ChainedScheduler hold others.
        if "_schedulers" in bare:
            bare["_schedulers"] = [left_out(each) for each in bare["_schedulers"]]
        return bare
    return state


def filled_in(state: Any, own: Callable[[], Any]) -> Any:
    """`state` with what its parameter groups are silent about as it is in `own()`, the state of whom it is for.

    Raises `KeyError` where a rate was scheduled and there is none.
    """
    groups = _groups(state)
    if not groups or len(groups) != len(there := _groups(own())):
        return state
    return {**state, "param_groups": [_filled(*pair) for pair in zip(groups, there, strict=True)]}


def _groups(state: Any) -> Sequence[Mapping[str, Any]]:
    return state.get("param_groups", ()) if isinstance(state, Mapping) else ()


def _bare(group: Mapping[str, Any]) -> dict[str, Any]:
    bare = {"params": group["params"]}
    if group.get("initial_lr"):
        bare[SCHEDULED] = float(group["lr"] / group["initial_lr"])
    return bare


def _filled(said: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    group = {**there, **said}
    scheduled = group.pop(SCHEDULED, None)
    if scheduled is not None:
        base = there.get("initial_lr", there["lr"])
        group |= {"initial_lr": base, "lr": base * scheduled}
    return group
