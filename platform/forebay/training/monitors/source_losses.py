"""Losses of each dataset of a mixture."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from forebay.data.loader.batch import Batch
from forebay.errors import BadJob, InvalidOption
from forebay.training.state.metric import WeightedMean

Criterion = Callable[[Tensor, Tensor], Tensor]


def losses_by_source(batch: Batch, losses: Tensor, *, name: str = "loss") -> dict[str, WeightedMean]:
    """Return metrics `loss/NAME` for `worker.commit`.

    Each is the mean loss of a dataset's rows, on the losses' device.

    ```python
    losses = F.cross_entropy(model(batch), batch["label"], reduction="none")
    ...
    worker.commit(loss=loss, **fb.monitors.losses_by_source(batch, losses))
    ```

    `EpochEnded` has the mean over all rows of the epoch. The dummy row of a batch of weight 0 does not count. Returns
    nothing for a batch of one dataset without a name.

    Args:
        batch: Rows of a mixture.
        losses: Loss of each row, float [rows] or [rows, ...].
        name: First part of the metrics' names.

    Raises:
        InvalidOption: Another number of losses than rows.
    """
    if batch.source is None:
        return {}
    if losses.ndim == 0 or len(losses) != len(batch.source):
        raise InvalidOption(
            f"losses_by_source() was given losses of shape {tuple(losses.shape)} for {len(batch.source)} rows. Give "
            'one loss for each row, as a criterion with reduction="none" returns them.'
        )
    by_row = losses.detach().double().reshape(len(losses), -1).mean(dim=1)
    counted = slice(None) if batch.weight else slice(0)
    source, zeros = batch.source.long()[counted], by_row.new_zeros(len(batch.names))
    totals = zeros.index_add(0, source, by_row[counted])
    weights = zeros.index_add(0, source, torch.ones_like(by_row[counted]))
    return {
        f"{name}/{each}": WeightedMean(total=totals[number], weight=weights[number])
        for number, each in enumerate(batch.names)
    }


class SourceLosses:
    """Batch loss that also adds up each dataset's losses.

    For `worker.backward`.

    They are known for a criterion of torch with `reduction="mean"`, which is called a second time without gradients
    and reduction. A plan of one dataset costs nothing.
    """

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        self._model, self._criterion = model, criterion
        self._by_row: Criterion | None = None
        if isinstance(criterion, nn.Module) and getattr(criterion, "reduction", None) == "mean":
            by_row: Any = copy.copy(criterion)
            by_row.reduction = "none"
            self._by_row = by_row
        self._metrics: dict[str, WeightedMean] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch's rows."""
        if "label" not in batch:
            raise BadJob(
                f"fb.fit reads batch['label'], and the batches have {', '.join(map(repr, batch))}. Name the label so "
                "in the transform."
            )
        output = self._model(batch)
        if self._by_row is not None and batch.source is not None:
            with torch.no_grad():
                self._add(losses_by_source(batch, self._by_row(output, batch["label"])))
        return self._criterion(output, batch["label"])

    def pop(self) -> dict[str, WeightedMean]:
        """Return the losses of each dataset since the last call."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _add(self, metrics: dict[str, WeightedMean]) -> None:
        for name, value in metrics.items():
            before = self._metrics.get(name)
            if before is not None:
                value = WeightedMean(total=before.total + value.total, weight=before.weight + value.weight)  # noqa: PLW2901
            self._metrics[name] = value
