"""Objects whose states are saved and restored together.

A run that continues with its own hyperparameters leaves them out of a state, and fills them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from forebay.errors import BadJob

SCHEDULED = "scheduled"
"""Key in a group without hyperparameters: its learning rate as a fraction of the rate its scheduler started at."""
BASE_RATES = ("base_lrs", "_last_lr")
_OF_NO_CLASS = {
    *("params", "param_names", SCHEDULED, "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
}
"""Keys of a group that optimizers of any class may have: of schedulers, and of parameters."""


class Stateful(Protocol):
    """Modules, optimizers, schedulers, scalers: anything with a state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class StatefulObjects:
    """Objects by name.

    The states of all of them are one value.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}

    def add(self, **objects: Stateful) -> None:
        """Add objects.

        Raises `BadJob` for a name that another object has: a checkpoint would lack the state of one of them.
        """
        for name, added in objects.items():
            if self._objects.setdefault(name, added) is not added:
                raise BadJob(
                    f"two objects of this train function are called {name!r}, and a checkpoint would have only one. "
                    "worker.setup() takes 'model' and 'optimizer', and is called once: put several models into one "
                    "nn.Module. Give worker.track() other names.",
                    name=name,
                )

    def state(self) -> dict[str, Any]:
        """Return the state of every object: references, not copies.

        Write it before the next step.
        """
        return {name: obj.state_dict() for name, obj in self._objects.items()}

    def restore(self, state: Mapping[str, Any], *, step: int) -> None:
        """Load `state` into the tracked objects.

        The rest of `state` waits for a later call.

        Hyperparameters that `state` lacks stay as they were built: a run that forked from another trains with its own
        rates. Raises `BadJob` if an object's state is missing or does not fit it.
        """
        for name, obj in self._objects.items():
            if name not in state:
                raise BadJob(
                    f"the checkpoint of step {step} holds the state of {', '.join(sorted(state))}, but not of "
                    f"{name!r}, which this train function tracks. Give the run a new name.",
                    step=step,
                )
            try:
                obj.load_state_dict(filled_in(state[name], obj.state_dict))
            except (RuntimeError, ValueError, KeyError) as error:
                raise BadJob(
                    f"the checkpoint of step {step} does not fit the {name} of this train function ({error}). Build it "
                    "as the run that saved it did, or give the run a new name.",
                    step=step,
                ) from error


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

    Raises `KeyError` for a scheduled rate that the object does not have, and `ValueError` for one of another class.
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
    strange, missing = (sorted({*a} - {*b} - _OF_NO_CLASS) for a, b in ((saved, there), (there, saved)))
    if strange and missing:  # one alone is of another version of the class
        other = f"with {', '.join(strange)}, and without {', '.join(missing)}"
        raise ValueError(f"it was saved by an optimizer of another class: {other}")
    group = {**there, **saved}
    scheduled = group.pop(SCHEDULED, None)
    if scheduled is not None:
        base = there.get("initial_lr", there["lr"])
        group |= {"initial_lr": base, "lr": base * scheduled}
    return group
