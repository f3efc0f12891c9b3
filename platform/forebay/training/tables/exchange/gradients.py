"""Sum of the gradients of several tables over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from forebay.training.tables.exchange.joined_exchange import OutgoingRows, exchange_together, sum_together
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.open_rows import OpenRows
from forebay.training.tables.wire import from_wire, to_wire


@torch.no_grad()
def reduce_together(tables: Iterable[SharedRows | OpenRows]) -> None:
    """Sum lookup gradients since the last update over ranks.

    Those that are summed take no part.

    Tables whose rows are exchanged share a message to the owners. Replicas, and the rows that ids of an open table
    share, have the messages of one dense sum. All ranks call it alike. Raises `BadJob` on all ranks if ids of a replica
    were refused.
    """
    due = [shared for shared in tables if not shared.is_reduced and shared.tensors.world_size > 1]
    _send_to_owners([shared for shared in due if shared.is_exchanged])
    sum_dense(due)


@torch.no_grad()
def sum_dense(tables: Iterable[SharedRows | OpenRows]) -> None:
    """Sum gradients of replicas and shared rows, in one message.

    Shared rows belong to open tables.
    """
    every = list(tables)
    replicas = [shared for shared in every if isinstance(shared, SharedRows) and not shared.is_exchanged]
    gradients = [shared.dense_gradient() for shared in replicas]
    shared_rows = [shared.shared_gradient() for shared in every if isinstance(shared, OpenRows)]
    if every:
        sum_together(every[0].tensors, [*gradients, *shared_rows])
    for shared, dense in zip(replicas, gradients, strict=True):
        shared.sum_replicas(dense)


def _send_to_owners(tables: Sequence[SharedRows | OpenRows]) -> None:
    lookups = [(shared, shared.pop_pending()) for shared in tables]
    outgoing = [
        OutgoingRows(to_wire(each.gradient, shared.wire), each.send, each.receive)
        for shared, pending in lookups
        for each in pending
    ]
    received = iter(exchange_together(tables[0].tensors, outgoing) if tables else [])
    for shared, pending in lookups:
        gradients = [from_wire(next(received).rows, shared.facts.dim, shared.wire) for _ in pending]
        shared.sum_received(pending, gradients)
