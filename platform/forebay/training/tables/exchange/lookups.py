"""Lookups of rows, fetched together from their owners."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forebay.training.tables.exchange.joined_exchange import OutgoingRows, ReceivedRows, exchange_together
from forebay.training.tables.exchange.pending_lookup import PendingLookup
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.vocabulary.open_rows import OpenRows
from forebay.training.tables.wire import from_wire, to_wire


def fetch_together(lookups: Sequence[tuple[SharedRows | OpenRows, Tensor]]) -> list[Tensor]:
    """Return the rows of each table's ids, float32 [n, dim].

    Ids [n] are valid. Bit-equal to one lookup after the other.

    One message has the ids of all lookups, and one all rows. Each row is fetched once per lookup. A backward pass
    reaches it. All ranks call it alike.
    """
    is_trained = torch.is_grad_enabled()
    with torch.no_grad():
        begun = [_BegunLookup(shared, ids, is_trained=is_trained) for shared, ids in lookups]
        if is_trained:
            _count_calls(begun)
        exchanged = [each for each in begun if each.shared.is_exchanged]
        for each, asked in zip(exchanged, _exchange(exchanged, [each.question for each in exchanged]), strict=True):
            each.asked = asked
        answers = {each: each.shared.answer(each.asked.rows, is_trained=is_trained) for each in begun}
        sent = [each.answer_sent(answers[each]) for each in exchanged]
        for each, received in zip(exchanged, _exchange(exchanged, sent), strict=True):
            answers[each] = from_wire(received.rows, each.shared.facts.dim, each.shared.wire)
    return [each.finish(rows) for each, rows in answers.items()]


def _count_calls(lookups: Sequence[_BegunLookup]) -> None:
    for each in lookups:
        use = each.shared.use
        use.calls += 1
        use.own_calls += 1 / len(lookups)
        use.trained += len(each.question.rows)


class _BegunLookup:
    """A lookup of one table's `ids` [n] under way."""

    def __init__(self, shared: SharedRows | OpenRows, ids: Tensor, *, is_trained: bool) -> None:
        self.shared, self._routed, self._is_trained = shared, shared.route(ids), is_trained
        self.asked = ReceivedRows(self._routed.asked, ())
        """What all ranks ask this one for. Before an exchange, it is what this rank asks for."""

    @property
    def question(self) -> OutgoingRows:
        return OutgoingRows(self._routed.asked, self._routed.send)

    def answer_sent(self, rows: Tensor) -> OutgoingRows:
        """Answer all ranks, and count what this rank sends."""
        send, receive, here = self._routed.send, self.asked.receive, self.shared.tensors.rank
        answer = OutgoingRows(to_wire(rows, self.shared.wire), receive, send)
        # A gradient is as wide as the row.
        asked_bytes = self.question.width + (answer.width if self._is_trained else 0)
        self.shared.use.sent_bytes += (sum(send) - send[here]) * asked_bytes
        self.shared.use.sent_bytes += (sum(receive) - receive[here]) * answer.width
        return answer

    def finish(self, rows: Tensor) -> Tensor:
        if self._is_trained:
            pending = PendingLookup(rows.requires_grad_(), self.asked.rows, self._routed.send, self.asked.receive)
            self.shared.add_pending(pending)
        return rows.index_select(0, self._routed.inverse)


def _exchange(lookups: Sequence[_BegunLookup], outgoing: Sequence[OutgoingRows]) -> list[ReceivedRows]:
    return exchange_together(lookups[0].shared.tensors, outgoing) if lookups else []
