"""Evaluations of one rank, and their metrics over ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forebay.errors import BadJob
from forebay.events import Sample
from forebay.training.collectives.collective import Collective
from forebay.training.state import rng
from forebay.training.state.metric import Evaluation, Metric, weighted
from forebay.training.worker.spec import TrainSpec

EvaluateNow = Callable[[], Mapping[str, Metric] | Evaluation]
"""Function that all ranks call together for the metrics of the model as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEvaluation:
    """Metrics over all ranks, the same on each of them."""

    metrics: Mapping[str, float]
    samples: tuple[Sample, ...]
    seconds: float


class Evaluator:
    """Evaluations that the job asks for."""

    def __init__(self, spec: TrainSpec, collective: Collective, evaluate: EvaluateNow) -> None:
        self._spec, self._collective, self._evaluate = spec, collective, evaluate

    @property
    def begins(self) -> bool:
        """Whether an evaluation comes before the first step."""
        return self._spec.eval_every is not None

    def is_due(self, step: int, *, ends_epoch: bool) -> bool:
        """Whether an evaluation comes with the commit of `step`."""
        every, last = self._spec.eval_every, self._spec.max_steps
        is_step = (every is not None and step % every == 0) or step == last
        return ends_epoch or is_step

    def found(self) -> FoundEvaluation:
        """Evaluate. All ranks call it together.

        Random generators are afterwards as before: a run with evaluations trains as one without.
        """
        began, device = time.perf_counter(), self._collective.device
        states = rng.capture(device)
        result = self._evaluate()
        rng.restore(states, device)
        made = result if isinstance(result, Evaluation) else Evaluation(metrics=result)
        if not isinstance(made.metrics, Mapping):
            raise BadJob(
                f"the evaluation returned {result!r:.200}. Return metrics by name, such as {{'auc': 0.8}}, or "
                "fb.Evaluation(metrics=..., samples=...)."
            )
        mine = {name: tuple(map(float, weighted(name, value))) for name, value in made.metrics.items()}
        metrics = self._collective.combine(mine, _over_ranks)
        # Only rank 0 reports samples.
        return FoundEvaluation(metrics=metrics, samples=tuple(made.samples), seconds=time.perf_counter() - began)


def without_evaluation(spec: TrainSpec) -> BadJob:
    """Error of a job whose train function names no evaluation."""
    asked = next(name for name in ("eval_every", "keep_best") if getattr(spec, name) is not None)
    return BadJob(
        f"{asked}={getattr(spec, asked)!r} needs evaluations, and this train function has none that its worker could "
        "call. Call worker.evaluate_with(function) before worker.loader(), or give fb.fit(..., evaluate=function)."
    )


def _over_ranks(ranks: Sequence[Mapping[str, tuple[float, ...]]]) -> dict[str, float]:
    """Mean of each metric, of rows for a `WeightedMean`.

    Left out if no rank has a row of it.
    """
    found = {}
    for name in {name: None for rank in ranks for name in rank}:
        given = [rank[name] for rank in ranks if name in rank]
        if all(each == given[0] for each in given):  # the mean of equal numbers may be another number
            given = given[:1]
        total, weight = (sum(parts) for parts in zip(*given, strict=True))
        if weight:
            found[name] = total / weight
    return found
