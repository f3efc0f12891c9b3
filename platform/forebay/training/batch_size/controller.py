"""A job's batch policy and rate scaling on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.training.batch_size.lr_scaling import LRScaling
from forebay.training.batch_size.policy import BatchPolicy, LiveBatchPolicy, RateScaling, TrainPosition
from forebay.training.state.setup import TrainSetup


class BatchSizeController:
    """Batch policy and rate scaling, active after `attach`.

    `base` is the global batch that the job's learning rate was chosen for.
    """

    def __init__(self, policy: BatchPolicy | None, rate: RateScaling | None, *, base: int) -> None:
        self._policy, self._rate, self._base = policy, rate, base
        self._live: LiveBatchPolicy | None = None
        self._fresh: dict[str, Any] = {}
        self._scaled: LRScaling | None = None
        self._batch = self._previous = base
        self._changed_at = 0
        self.asked = base
        """Rows per step that were last decided. The rest of an epoch may be too small for them."""

    def attach(self, setup: TrainSetup) -> None:
        """Start policy and rate scaling."""
        if self._policy is not None:
            self._live = self._policy.attach(setup)
            self._fresh = self._live.state_dict()
        if self._rate is not None:
            self._scaled = LRScaling(setup.optimizer, self._rate, base_batch=self._base)

    def step(self, *, rows: int, size: int) -> None:
        """Count a step of `size` rows, with `rows` of this rank."""
        if self._live is not None:
            self._live.step(rows=rows, size=size)

    def measured(self) -> tuple[float, ...]:
        """Return this rank's measurements for the decision of all ranks."""
        return () if self._live is None else self._live.measured()

    def decide(self, place: TrainPosition, measured: Sequence[tuple[float, ...]], requested: int | None = None) -> int:
        """Return the rows per step from `place` on, which are those `requested` if any are.

        The same on all ranks.
        """
        decided = place.global_batch if self._live is None else self._live.global_batch(place, measured)
        self.asked = requested or decided
        return self.asked

    def scale_rate(self, global_batch: int, *, step: int) -> None:
        """Scale the learning rate of the next step.

        For batches of `global_batch` rows after `step`.
        """
        if global_batch != self._batch:
            self._previous, self._batch, self._changed_at = self._batch, global_batch, step
        if self._scaled is not None:
            self._scaled.set_batch(
                global_batch=self._batch, previous_batch=self._previous, steps_since_change=step - self._changed_at
            )

    def state(self) -> dict[str, Any]:
        return {
            "policy": {} if self._live is None else self._live.state_dict(),
            "base": self._base,
            "batch": self._batch,
            "asked": self.asked,
            "previous": self._previous,
            "changed_at": self._changed_at,
        }

    def restore(self, state: Mapping[str, Any]) -> int:
        """Load `state`. Returns the rows per step.

        If the job that made `state` started with another global batch, this job continues with its own.
        """
        is_ours = state.get("base") == self._base
        self._batch = state["batch"] if is_ours else self._base
        # Checkpoints of earlier releases lack it.
        self.asked = state.get("asked", self._batch) if is_ours else self._base
        self._previous, self._changed_at = (state["previous"], state["changed_at"]) if is_ours else (self._base, 0)
        if self._live is not None:
            self._live.load_state_dict(state.get("policy") or self._fresh)
        return self._batch
