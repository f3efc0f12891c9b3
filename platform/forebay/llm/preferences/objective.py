"""Losses and metrics of a step on preferences, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from forebay.data.loader.batch import Batch
from forebay.llm.preferences.answers import desired
from forebay.llm.preferences.losses import AnswerScores, Preferences, gains, label_losses, pair_losses
from forebay.llm.preferences.reference import Reference
from forebay.training.worker.worker import Worker

ScoresOf = Callable[[Batch], AnswerScores]


class Objective(Protocol):
    """Loss of the passes of a step.

    Laws: sums and metrics are over the global batch, the same on all ranks, and rows with the weight 0 count nowhere.
    """

    def begin(self, batch: Batch) -> None:
        """Look at this rank's rows of a step, before its first pass."""

    def loss_of(self, part: Batch) -> Tensor:
        """Sum of the losses of a pass."""
        ...

    def end(self) -> dict[str, float]:
        """Metrics of the step."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss and accuracy of held-out rows."""
        ...


class PairObjective:
    """Objective of pairs of answers."""

    def __init__(
        self, preferences: Preferences, worker: Worker, scores_of: ScoresOf, reference: Reference | None
    ) -> None:
        self._preferences, self._worker = preferences, worker
        self._scores_of, self._reference = scores_of, reference
        self._scale = preferences.number("beta") if preferences.loss != "reward" else 1.0
        self._seen: list[Tensor] = []

    def begin(self, batch: Batch) -> None:  # noqa: ARG002 - its passes need nothing of each other
        self._seen.clear()

    def loss_of(self, part: Batch) -> Tensor:
        gained = self._gains(part)
        if part.weight > 0:  # a row that a rank repeats is not counted
            self._seen.append(gained.detach())
        return pair_losses(self._preferences, gained).sum().float()

    def end(self) -> dict[str, float]:
        gained = torch.cat(self._seen) if self._seen else torch.empty(0)
        right, total, pairs = self._worker.all_reduce(
            np.array([float((gained > 0).sum()), float(gained.sum()), len(gained)])
        )
        return {"accuracy": right / max(pairs, 1), "margin": self._scale * total / max(pairs, 1)}

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        sums = np.zeros(3)
        for batch in batches:
            gained = self._gains(batch)  # Also for a dummy row: all ranks call a model equally often.
            if batch.weight > 0:
                sums += [float(pair_losses(self._preferences, gained).sum()), int((gained > 0).sum()), len(gained)]
        loss, right, pairs = self._worker.all_reduce(sums)
        return {"validation_loss": loss / max(pairs, 1), "validation_accuracy": right / max(pairs, 1)}

    def _gains(self, part: Batch) -> Tensor:
        reference = None if self._reference is None else self._reference(part)
        return gains(self._preferences, self._scores_of(part), reference)


class LabelObjective:
    """Objective of answers with labels (KTO).

    The divergence from the reference is estimated over the answers to other prompts of the global batch, before its
    first pass. So it does not depend on ranks and passes, as an estimate of each pass would.
    """

    def __init__(
        self, preferences: Preferences, worker: Worker, scores_of: ScoresOf, reference: Reference, *, micro_rows: int
    ) -> None:
        """`scores_of` computes without dropout where gradients are off."""
        self._preferences, self._worker, self._micro_rows = preferences, worker, micro_rows
        self._scores_of, self._reference = scores_of, reference
        self._references: list[Tensor] = []
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._kl = 0.0

    def begin(self, batch: Batch) -> None:
        self._seen.clear()
        parts = self._worker.micro_batches(batch, self._micro_rows)
        self._references = [self._reference(part) for part in parts]
        with torch.no_grad():
            ratios = [self._scores_of(part).values - each for part, each in zip(parts, self._references, strict=True)]
        self._kl = self._divergence([each for part, each in zip(parts, ratios, strict=True) if part.weight > 0])

    def loss_of(self, part: Batch) -> Tensor:
        ratios = (self._scores_of(part).values - self._references.pop(0))[:, 0]
        labels = desired(part)
        if part.weight > 0:
            self._seen.append((ratios.detach(), labels))
        return label_losses(self._preferences, ratios, labels, self._kl).sum().float()

    def end(self) -> dict[str, float]:
        found = self._measures(self._seen, self._kl)
        return {"accuracy": found["accuracy"], "margin": found["margin"], "kl": self._kl}

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        seen, others = list[tuple[Tensor, Tensor]](), list[Tensor]()
        for batch in batches:
            ratios = self._scores_of(batch).values - self._reference(batch)
            if batch.weight > 0:
                seen.append((ratios[:, 0], desired(batch)))
                others.append(ratios)
        found = self._measures(seen, self._divergence(others))
        return {"validation_loss": found["loss"], "validation_accuracy": found["accuracy"]}

    def _divergence(self, ratios: Sequence[Tensor]) -> float:
        """Mean log-ratio of the answers to other prompts, at least 0."""
        total, count = sum(float(each[:, 1].sum()) for each in ratios), sum(map(len, ratios))
        total, count = self._worker.all_reduce(np.array([total, float(count)]))
        return max(float(total / max(count, 1)), 0.0)

    def _measures(self, seen: Sequence[tuple[Tensor, Tensor]], kl: float) -> dict[str, float]:
        sums = np.zeros(6)
        for ratios, labels in seen:
            losses = label_losses(self._preferences, ratios, labels, kl)
            right = (ratios > kl) == labels
            wanted, unwanted = ratios[labels], ratios[~labels]
            sums += [
                *(float(losses.sum()), float(right.sum())),
                *(float(wanted.sum()), len(wanted), float(unwanted.sum()), len(unwanted)),
            ]
        loss, right_ones, of_wanted, num_wanted, of_unwanted, num_unwanted = map(float, self._worker.all_reduce(sums))
        answers = max(num_wanted + num_unwanted, 1)
        margin = of_wanted / max(num_wanted, 1) - of_unwanted / max(num_unwanted, 1)
        return {
            "loss": loss / answers,
            "accuracy": right_ones / answers,
            "margin": self._preferences.number("beta") * margin,
        }
