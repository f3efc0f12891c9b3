"""Reference training loop.

If it does not fit, copy it and change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forebay.training.monitors.source_losses import SourceLosses
from forebay.training.tables.strategy import TablesOption
from forebay.training.worker.eval_mode import evaluating
from forebay.training.worker.worker import Worker

Evaluate = Callable[[Worker, nn.Module], Mapping[str, float]]
"""Function that all ranks call together for the metrics of a model: see `fb.evaluate_auc`."""


def fit(
    worker: Worker,
    model: nn.Module,
    optimizer: Callable[..., Optimizer],
    criterion: Callable[[Tensor, Tensor], Tensor],
    evaluate: Evaluate | None = None,
    tables: TablesOption = None,
) -> nn.Module:
    """Train `model` for all remaining epochs of the run.

    Args:
        worker: Argument of the train function.
        model: Called with a batch (array name -> tensor [rows, ...]). It need not be on a device.
        optimizer: Called with the model's parameters, e.g. `partial(torch.optim.Adam, lr=1e-3)`.
        criterion: Mean loss, a scalar, of (model output, `batch["label"]`), e.g. `nn.BCEWithLogitsLoss()`.
        tables: Optimizer of the rows of the model's `fb.Table` modules: see `Worker.setup`.
        evaluate: Called after the last step of each epoch, and as the job's `eval_every` says, in eval mode and without
            gradients. Returns name -> float.

    Over a mixture, the run also has the loss of each dataset (`SourceLosses`).

    Returns:
        The trained model on this rank's device, as `worker.setup` wraps it.

    Raises:
        BadJob: The newest checkpoint does not fit the model or the optimizer.
        CursorMismatch: The newest checkpoint belongs to another plan.
        Diverged: A monitor rejects the same steps several times in a row, or ends the run (`Job.nan_guard`).
    """
    model, opt = worker.setup(model, optimizer, tables=tables)
    if evaluate is not None:
        worker.evaluate_with(partial(_evaluated, worker, model, evaluate))
    loss_of = SourceLosses(model, criterion)
    for batch in worker.loader():
        loss = worker.backward(batch, loss_of)
        opt.step()
        opt.zero_grad()
        worker.commit(loss=loss, **loss_of.pop())
    return model


def _evaluated(worker: Worker, model: nn.Module, evaluate: Evaluate) -> Mapping[str, float]:
    with torch.no_grad(), evaluating(model):
        return evaluate(worker, model)
