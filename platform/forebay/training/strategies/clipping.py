"""Gradient clipping that means the same under every strategy."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def clip_gradients(optimizer: Optimizer, max_norm: float) -> Tensor:
    """Clip the gradients of an optimizer's parameters to `max_norm`.

    Returns the norm before.

    Sharded gradients count as a whole. The norm is a scalar, the same on all ranks.
    """
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = nn.utils.clip_grad_norm_([_dense(parameter) for parameter in trained], max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _dense(parameter: Tensor) -> Tensor:
    """Return a tensor whose `.grad` is dense, with the numbers of the parameter's gradient."""
    if parameter.grad is None or not parameter.grad.is_sparse:
        return parameter
    # torch takes no norm of sparse tensors. A row that was looked up twice has two entries before they are added up.
    parameter.grad = parameter.grad.coalesce()
    values = parameter.grad.values().detach()
    values.grad = parameter.grad.values()
    return values
