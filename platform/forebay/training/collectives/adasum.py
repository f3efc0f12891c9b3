"""Adasum of gradients.

Orthogonal gradients are added, parallel ones are averaged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from forebay.errors import InvalidOption
from forebay.training.collectives.tensor_collectives import TensorCollectives, TorchTensorCollectives, padded

_NO_NORM = sys.float_info.min**0.5


def register_adasum(model: DistributedDataParallel) -> None:
    """Reduce the gradients of `model` by Adasum, not mean.

    Call it once, before the first step. Raises `InvalidOption` for sparse gradients, which are in no bucket.
    """
    sparse = [name for name, module in model.module.named_modules() if getattr(module, "sparse", False)]
    if sparse:
        raise InvalidOption(
            f'reduction="adasum" needs dense gradients, but {", ".join(sparse)} was built with sparse=True. Build it '
            'with sparse=False, or use reduction="mean".'
        )
    # DDP compares a hook's annotations with classes, but they are strings in this file. A lambda has none.
    model.register_comm_hook(TorchTensorCollectives(), lambda collectives, bucket: adasum_hook(collectives, bucket))  # noqa: PLW0108


def adasum_hook(collectives: TensorCollectives, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Communication hook of DistributedDataParallel.

    It blocks until it is done: no overlap with computing.
    """
    buffer = bucket.buffer()
    combined = adasum(buffer, [gradient.numel() for gradient in bucket.gradients()], collectives)
    devices = [buffer.device] if buffer.device.type != "cpu" else None
    future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
    future.set_result(combined)
    return future


def adasum(buffer: Tensor, lengths: Sequence[int], collectives: TensorCollectives) -> Tensor:
    """Adasum `buffer` over ranks, tensor by tensor.

    Each is combined separately.

    Two gradients a, b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. More than two are combined as the Adasum of
    two halves, down to pairs of neighbours (Maleki et al. 2021, "Scaling Distributed Training with Adaptive Summation",
    MLSys, arXiv 2006.02924). If the world size is not a power of two, let p be the largest power below it: ranks from p
    on are first combined with ranks 0, 1, ... one by one, and p ranks remain. As in Horovod, dot products are computed
    for whole parameters, summed in float64.

    Args:
        buffer: [sum of lengths]. Half precision is combined in float32.
        lengths: Numbers of elements of the tensors, in their order. The same on all ranks.
        collectives: Exchange of tensors between the ranks.

    Returns:
        A new tensor like `buffer`, bit-equal on all ranks.
    """
    assert sum(lengths) == len(buffer), "a bucket holds its gradients and nothing else"
    wide = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
    gradients = collectives.all_to_all(padded(wide, collectives.world_size).unsqueeze(0)).squeeze(1)
    spans = list(_spans(lengths, collectives.rank * gradients.shape[1], gradients.shape[1]))
    while (ranks := len(gradients)) > 1:
        power = 1 << (ranks.bit_length() - 1)
        if power < ranks:
            folded = _combine(gradients[: ranks - power], gradients[power:], spans, len(lengths), collectives)
            gradients = torch.cat([folded, gradients[ranks - power : power]])
        else:
            gradients = _combine(gradients[0::2], gradients[1::2], spans, len(lengths), collectives)
    return collectives.all_gather(gradients[0])[: len(buffer)].to(buffer.dtype)


_Span = tuple[int, slice]
"""Number of a tensor, and its place in this rank's slice."""


def _spans(lengths: Sequence[int], begin: int, length: int) -> Iterator[_Span]:
    start = 0
    for number, size in enumerate(lengths):
        low, high = max(start, begin), min(start + size, begin + length)
        if low < high:
            yield number, slice(low - begin, high - begin)
        start += size


def _combine(a: Tensor, b: Tensor, spans: list[_Span], num_tensors: int, collectives: TensorCollectives) -> Tensor:
    """Combine rows of `a` and `b`, both [pairs, n]."""
    products = torch.zeros(3, num_tensors, len(a), dtype=torch.float64, device=a.device)
    for number, span in spans:
        ours, theirs = a[:, span].double(), b[:, span].double()
        products[0, number] = (ours * theirs).sum(1)
        products[1, number] = ours.square().sum(1)
        products[2, number] = theirs.square().sum(1)
    dot, ours_squared, theirs_squared = collectives.all_reduce(products)
    keep_ours, keep_theirs = _kept(dot, ours_squared).to(a.dtype), _kept(dot, theirs_squared).to(a.dtype)
    combined = torch.zeros_like(a)
    for number, span in spans:
        combined[:, span] = keep_ours[number, :, None] * a[:, span] + keep_theirs[number, :, None] * b[:, span]
    return combined


def _kept(dot: Tensor, squared: Tensor) -> Tensor:
    """Factor of a gradient in the sum.

    It is 1 for a zero gradient, so that an idle rank changes nothing.
    """
    return torch.where(squared > _NO_NORM, 1 - dot / (2 * squared), 1.0)
