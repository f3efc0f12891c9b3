"""Objects whose states are saved and restored together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forebay.errors import BadJob
from forebay.training.state.hyperparameters import filled_in


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
        self._objects.update(objects)

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
