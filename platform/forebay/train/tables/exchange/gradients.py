"""Sum of the gradients of several tables on the ranks that own the rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from forebay.train.tables.exchange.joined_exchange import OutgoingRows, exchange_together
from forebay.train.tables.shared_rows import SharedRows
from forebay.train.tables.vocabulary.open_rows import OpenRows
from forebay.train.tables.wire import from_wire, to_wire


@torch.no_grad()
def reduce_together(tables: Iterable[SharedRows | OpenRows]) -> None:
    """Sum the gradients of all lookups since the last update, those of all tables in one message.

    Tables that exchange no rows, and those whose gradients are summed, take no part. All ranks call it alike.
    """
    lookups = [(shared, shared.pop_pending()) for shared in tables if shared.is_exchanged and not shared.is_reduced]
    outgoing = [
        OutgoingRows(to_wire(each.gradient, shared.wire), each.send, each.receive)
        for shared, pending in lookups
        for each in pending
    ]
    received = iter(exchange_together(lookups[0][0].tensors, outgoing) if lookups else [])
    for shared, pending in lookups:
        gradients = [from_wire(next(received).rows, shared.facts.dim, shared.wire) for _ in pending]
        shared.sum_received(pending, gradients)
