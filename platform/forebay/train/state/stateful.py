"""The objects of a run whose state is saved and put back together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forebay.errors import BadJob
from forebay.train.state.hyperparameters import filled_in


class Stateful(Protocol):
    """Anything with a state: modules, optimizers, learning-rate schedulers, gradient scalers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class StatefulObjects:
    """Objects by name; the state of all of them is one value."""

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}

    def add(self, **objects: Stateful) -> None:
        self._objects.update(objects)

    def state(self) -> dict[str, Any]:
        """The state of every object: references, not copies, so write it before the next step."""
        return {name: obj.state_dict() for name, obj in self._objects.items()}

    def put_back(self, state: Mapping[str, Any], *, step: int) -> None:
        """Load what `state` holds into the objects that are here; the rest of `state` waits for a later call.

        What it is silent about of an optimizer's parameter groups stays as it was built: a run that branched off
        another trains with its own rates. Raises `BadJob` where an object's state is missing or does not fit it.
        """
        for name, obj in self._objects.items():
            if name not in state:
                raise BadJob(
                    f"the commit of step {step} holds the state of {', '.join(sorted(state))}, but not of {name!r}, "
                    "which this train function tracks. Give the run a new name.",
                    step=step,
                )
            try:
                obj.load_state_dict(filled_in(state[name], obj.state_dict))
            except (RuntimeError, ValueError, KeyError) as error:
                raise BadJob(
                    f"the commit of step {step} does not fit the {name} of this train function ({error}). Build it as "
                    "the run that saved it did, or give the run a new name.",
                    step=step,
                ) from error
