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
    norm = nn.utils.clip_grad_norm_(trained, max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
