"""Hyperparameters in saved states.

A run that continues with its own leaves them out and fills them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

SCHEDULED = "scheduled"
"""Key in a group without hyperparameters: its learning rate as a fraction of the rate its scheduler started at."""
BASE_RATES = ("base_lrs", "_last_lr")


def left_out(state: Any) -> Any:
    """Remove hyperparameters or rates from a saved state.

    Learned state stays: moments, and the progress of a schedule. Any other state is returned unchanged.
    """
    if not isinstance(state, Mapping):
        return state
    if "param_groups" in state:
        return {**state, "param_groups": [_bare(group) for group in state["param_groups"]]}
    if "last_epoch" in state:
        bare = {name: value for name, value in state.items() if name not in BASE_RATES}
        # SequentialLR and ChainedScheduler contain other schedulers.
        if "_schedulers" in bare:
            bare["_schedulers"] = [left_out(each) for each in bare["_schedulers"]]
        return bare
    return state


def filled_in(state: Any, own: Callable[[], Any]) -> Any:
    """Fill in missing hyperparameters from `own()`.

    `own()` is the state of the object that loads `state`.

    Raises `KeyError` for a scheduled rate that the object does not have.
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


def _filled(saved: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    group = {**there, **saved}
    scheduled = group.pop(SCHEDULED, None)
    if scheduled is not None:
        base = there.get("initial_lr", there["lr"])
        group |= {"initial_lr": base, "lr": base * scheduled}
    return group
