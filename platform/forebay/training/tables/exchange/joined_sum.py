"""Sum of several tensors over ranks in few messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from forebay.training.collectives.tensor_collectives import TensorCollectives

MESSAGE_NUMBERS = 1 << 22
"""Most numbers of several tensors in a message, 16 MiB of float32: they are copied into it and out of it."""


@torch.no_grad()
def sum_together(tensors: TensorCollectives, parts: Sequence[Tensor], *, most: int = MESSAGE_NUMBERS) -> None:
    """Replace each of `parts` by its sum over ranks, bit-equal on all of them.

    They travel in messages of at most `most` numbers, or of one part. An all-reduce of three or more ranks adds up in
    an order that depends on the place in the message. So a sum may differ in rounding from that of a part alone.

    All ranks give contiguous tensors of equal shapes and one dtype, in the same order.
    """
    for pieces in _messages(parts, most):
        numbers = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        total = tensors.all_reduce(numbers)
        for piece, values in zip(pieces, torch.split(total, list(map(len, pieces))), strict=True):
            piece.copy_(values)


def _messages(parts: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Yield the parts of each message, as views [n] of them."""
    pieces = list[Tensor]()
    for flat in (part.view(-1) for part in parts):
        if pieces and sum(map(len, pieces)) + len(flat) > most:
            yield pieces
            pieces = []
        pieces.append(flat)
    if pieces:
        yield pieces
