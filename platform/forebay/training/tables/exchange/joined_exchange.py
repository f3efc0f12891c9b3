"""Exchange of several lookups' rows in one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from forebay.training.collectives.tensor_collectives import TensorCollectives

MESSAGE_NUMBERS = 1 << 22
"""Most numbers of several tensors in a message, 16 MiB of float32: they are copied into it and out of it."""


@torch.no_grad()
def sum_together(tensors: TensorCollectives, parts: Sequence[Tensor], *, most: int = MESSAGE_NUMBERS) -> None:
    """Sum each of `parts` over ranks, in place.

    Bit-equal on all ranks.

    They travel in messages of at most `most` numbers, or of one part. An all-reduce of three or more ranks adds up in
    an order that depends on the position in the message. So a sum may differ in rounding from the part's own sum.

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


_COUNT_BYTES = 8


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Rows [n, ...] of one lookup, in the order of ranks.

    `send[r]` of them are for rank r.

    `receive` has the number of rows from each rank, if this rank knows it.
    """

    rows: Tensor
    send: Sequence[int]
    receive: Sequence[int] | None = None

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.rows.element_size() * self.rows.shape[1:].numel()


@dataclass(frozen=True, slots=True)
class ReceivedRows:
    """Rows [n, ...] in the order of sending ranks."""

    rows: Tensor
    receive: Sequence[int]


def exchange_together(tensors: TensorCollectives, outgoing: Sequence[OutgoingRows]) -> list[ReceivedRows]:
    """Exchange all `outgoing` at once.

    Returns what an exchange of each one alone does, to the bit.

    All ranks give as many, with equal dtypes and shapes of a row, in the same order. All of them know `receive`, or
    none does. Then the numbers travel before the rows, in the same message.
    """
    if len(outgoing) < 2:  # A single one needs no copies into the message and out of it.
        return [ReceivedRows(*tensors.exchange(each.rows, each.send, each.receive)) for each in outgoing]
    known = [each.receive for each in outgoing if each.receive is not None]
    parts = [torch.split(_bytes_of(each.rows), [count * each.width for count in each.send]) for each in outgoing]
    if not known:
        parts.insert(0, _packed_counts([each.send for each in outgoing], outgoing[0].rows.device))
    by_rank = list(zip(*parts, strict=True))
    send = [sum(map(len, pieces)) for pieces in by_rank]
    receive = _message_bytes(outgoing, known) if known else None
    received, sizes = tensors.exchange(torch.cat(list(chain(*by_rank))), send, receive)
    return _unpacked(torch.split(received, list(sizes)), outgoing, known)


def _unpacked(
    messages: Sequence[Tensor], outgoing: Sequence[OutgoingRows], known: Sequence[Sequence[int]]
) -> list[ReceivedRows]:
    """Unpack the messages [bytes] of all ranks, by lookup."""
    if not known:
        head = _COUNT_BYTES * len(outgoing)
        heads = torch.cat([message[:head] for message in messages]).view(torch.int64)
        known = heads.view(len(messages), len(outgoing)).T.tolist()
        messages = [message[head:] for message in messages]
    widths = [each.width for each in outgoing]
    by_rank = [
        torch.split(message, [count * width for count, width in zip(counts, widths, strict=True)])
        for message, counts in zip(messages, zip(*known, strict=True), strict=True)
    ]
    found = []
    for each, receive, pieces in zip(outgoing, known, zip(*by_rank, strict=True), strict=True):
        # A new tensor is aligned for every dtype, so the message needs no padding.
        rows = torch.cat(pieces).view(each.rows.dtype).view(sum(receive), *each.rows.shape[1:])
        found.append(ReceivedRows(rows, receive))
    return found


def _packed_counts(counts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Encode the numbers of rows for each rank."""
    return torch.tensor(counts, device=device).T.contiguous().view(torch.uint8).unbind()


def _message_bytes(outgoing: Sequence[OutgoingRows], known: Sequence[Sequence[int]]) -> list[int]:
    """Return the bytes from each rank."""
    widths = [each.width for each in outgoing]
    return [
        sum(count * width for count, width in zip(counts, widths, strict=True)) for counts in zip(*known, strict=True)
    ]


def _bytes_of(rows: Tensor) -> Tensor:
    return rows.contiguous().view(-1).view(torch.uint8)
