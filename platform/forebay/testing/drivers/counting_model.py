"""Model that counts its training rows in its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from forebay.data.loader.batch import Batch

MOST_EPOCHS = 256
"""Number of counted epochs. A resumed run may have more epochs, and its model must still fit the checkpoint."""


class CountingModel(nn.Module):
    """Least squares on three inputs, with counts of rows.

    `counts` [MOST_EPOCHS, num_rows]: how often each row changed the model in each epoch.

    A row's count increases by one through its gradient and the optimizer, like every other parameter. It is rolled back
    with the model. A row that is lost, repeated or wrongly weighted on any number of ranks shows as a count that is not
    1.
    """

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(MOST_EPOCHS, num_rows))
        self.layer = nn.Linear(3, 1)

    def forward(self, batch: Mapping[str, Tensor], epoch: int) -> tuple[Tensor, Tensor]:
        """Return predictions and counts of a batch, both [rows]."""
        return self.layer(batch["inputs"])[:, 0], self.counts[epoch, batch["row"][:, 0].long()]


def build_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Build an optimizer with momentum, without it for `counts`."""
    counts, *others = parameters
    return SGD([{"params": [counts], "lr": 1.0}, {"params": others, "lr": 0.01, "momentum": 0.9}])


def train_step(model: nn.Module, optimizer: Optimizer, batch: Batch, world_size: int) -> Tensor:
    """Make one step on this rank's rows.

    Returns its loss.
    """
    predicted, counts = model(batch, batch.epoch)
    loss: Tensor = ((predicted - batch["label"]) ** 2).mean() * batch.weight
    # Gradients are averaged over ranks. The dummy row of an empty part does not count.
    counted = counts.sum() * world_size * (batch.weight > 0)
    (loss - counted).backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
