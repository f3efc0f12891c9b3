"""Monitor of NaN and infinity.

In the loss, in gradients, and in parameters before they are saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forebay.training.monitors.monitor import Action, ActionWord, Verdict, action_of
from forebay.training.monitors.readings import DeferredMetrics, bad_parameter, is_of_other_rows
from forebay.training.state.metric import Metric
from forebay.training.state.setup import TrainSetup

LONGEST_PROBE = 65_536
"""Size above which a gradient, or a row of it, is not probed at every step."""

GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class NanGuard:
    """Monitor for values that are not finite.

    Every step it reads the metrics whose names match `metrics`, and the one-dimensional gradients (biases, scales). If
    the model has none, it reads the first row of all others. This costs next to nothing and is enough: an error that is
    not finite spoils the gradients of all layers below it. All parameters are read before a checkpoint. If they show an
    error that no step has shown, the steps since the last checkpoint are trained again. Then each gradient is read in
    full, so that the verdict can name the batch at fault. A metric of held-out rows, whose name begins with val, eval,
    test or held_out, is read if a pattern begins so too.

    `action` is "skip" (go back to the newest checkpoint, and leave out the batch), "roll back" (train the same batches
    again), "stop" or "warn". Raises `InvalidOption` for another one.

    >>> NanGuard(action="stop").metrics
    ('*loss*', '*norm*')
    """

    action: ActionWord | Action = "skip"
    metrics: tuple[str, ...] = ("*loss*", "*norm*")

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", action_of(self.action))
        object.__setattr__(self, "metrics", tuple(self.metrics))

    def attach(self, setup: TrainSetup) -> LiveNanGuard:
        """Return a `LiveMonitor` for one rank."""
        return LiveNanGuard(self, setup)


class LiveNanGuard:
    """Active `NanGuard` on one rank.

    It reads gradients at `optimizer.step()`, before they can be cleared.
    """

    def __init__(self, guard: NanGuard, setup: TrainSetup) -> None:
        self._action, self._patterns = action_of(guard.action), guard.metrics
        self._model, self._parts = setup.model, setup.parts
        self._wanted: dict[str, bool] = {}
        self._probes: list[Tensor] = []
        self._readings = DeferredMetrics()
        self._steps: list[int] = []
        self._closely = False
        self._warned = False
        parameters = list(_parameters(setup.optimizer))
        short = [parameter for parameter in parameters if parameter.dim() < 2]
        self._probed = short or parameters
        setup.optimizer.register_step_pre_hook(self._probe)

    def step(self, step: int, metrics: Mapping[str, Metric]) -> None:
        self._steps = [*self._steps[:1], step]
        for name, value in metrics.items():
            if self._is_wanted(name):
                self._readings.add(step, name, value)
        for probe in self._probes:
            self._readings.add(step, GRADIENT, probe)
        self._probes.clear()

    def verdict(self) -> Verdict:
        found = self._found()
        self._steps = []
        # Until a checkpoint is healthy again: the cause is likely to come back.
        self._closely = found is not None
        if found is None:
            self._warned = False
            return Verdict()
        step, what, is_own = found
        action = self._action
        if action is Action.WARN:
            action, self._warned = Action.GO_ON if self._warned else action, True
        if action is Action.SKIP and step is None:
            action = Action.ROLL_BACK
            what += "; no step since the last checkpoint has shown it, so they are repeated and watched more closely"
        return Verdict(action=action, reason=f"NanGuard: {what}", step=step, rows="own" if is_own else "all")

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: ARG002 - its state is of steps since a checkpoint
        self._readings.clear()
        self._probes.clear()
        self._steps = []

    def _is_wanted(self, name: str) -> bool:
        if name not in self._wanted:
            fitting = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
            # No trained batch is at fault for a loss of held-out rows. A pattern that names it asks for it.
            self._wanted[name] = any(not is_of_other_rows(name) or is_of_other_rows(each) for each in fitting)
        return self._wanted[name]

    def _found(self) -> tuple[int | None, str, bool] | None:
        """Return the first bad step and its description.

        Also whether a metric of this rank shows it.
        """
        bad = [reading for reading in self._readings.read_all() if not math.isfinite(reading.value)]
        if bad:
            names = dict.fromkeys(reading.name for reading in bad if reading.step == bad[0].step)
            what = f"{' and '.join(names)} of step {bad[0].step} not finite"
            return bad[0].step, what, list(names) != [GRADIENT]
        where = bad_parameter(self._model, self._parts)
        if where is None:
            return None
        only_step = self._steps[0] if len(set(self._steps)) == 1 else None
        what = f"{where} not finite" + ("" if only_step is None else f" after step {only_step}")
        return only_step, what, False

    def _probe(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - a hook of torch
        # A GradScaler makes a fused optimizer skip this step.
        if getattr(optimizer, "found_inf", None) is not None:
            return
        with torch.no_grad():
            probed = _parameters(optimizer) if self._closely else self._probed
            gradients = [found for parameter in probed if (found := self._parts.gradient(parameter)) is not None]
            parts: dict[torch.device, list[Tensor]] = {}
            for gradient in gradients:
                for part in _all_of(gradient) if self._closely else _first_row(gradient):
                    parts.setdefault(part.device, []).append(part)
            # In float64 a sum of float32 numbers cannot overflow: it is finite if and only if all of them are.
            self._probes += [torch.cat(found).sum(dtype=torch.float64) for found in parts.values()]


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _all_of(gradient: Tensor) -> Iterator[Tensor]:
    yield (gradient.coalesce().values() if gradient.is_sparse else gradient).reshape(-1)


def _first_row(gradient: Tensor) -> Iterator[Tensor]:
    if gradient.is_sparse or gradient.numel() == 0:
        return
    part = gradient.reshape(-1) if gradient.dim() < 2 else gradient[0].reshape(-1)
    if part.numel() <= LONGEST_PROBE:
        yield part
