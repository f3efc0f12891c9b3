"""Ids beyond a table are named, and all ranks raise the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forebay.errors import BadJob
from forebay.training.collectives.collective import Collective, SingleProcessCollective
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.table import Lookup, Table, look_up

Ranks = Callable[..., list[Any]]
ROWS = 70


class TwoTables(nn.Module):
    def __init__(self, *, looks_up_together: bool = False) -> None:
        super().__init__()
        self.looks_up_together = looks_up_together
        self.user = Table(ROWS, 3)
        self.sites = Table(ROWS, 3, padding_id=0)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        if self.looks_up_together:
            lookups = (
                Lookup(self.user, batch["user"]),
                Lookup(self.sites, batch["sites"], batch["sites_lengths"], pool="sum"),
            )
            return sum(look_up(*lookups))
        return self.user(batch["user"]) + self.sites(batch["sites"], batch["sites_lengths"], pool="sum")


def batch_of(user: Sequence[int] = (1, 2), sites: Sequence[Sequence[int]] = ((3, 4), (5, 0))) -> Mapping[str, Tensor]:
    return {"user": torch.tensor(user), "sites": torch.tensor(sites), "sites_lengths": torch.tensor([2, 1])}


def error_on(
    collective: Collective,
    placement: str,
    batches: Sequence[Mapping[str, Tensor]],
    is_trained: bool,
    looks_up_together: bool = False,
) -> tuple[str, Mapping[str, Any], float]:
    """Return the error of a step of this rank with its one of `batches`, and a sum over ranks after it."""
    model = TwoTables(looks_up_together=looks_up_together)
    tables = ModelTables(model, Tables(RowSGD(lr=1.0), placement=placement), collective, seed=3)

    def step() -> None:
        model(batches[collective.world.rank]).sum().backward()
        tables.step()

    with pytest.raises(BadJob) as found, torch.set_grad_enabled(is_trained):
        step()
    total = collective.all_reduce(np.ones(1))  # No rank is one exchange ahead of the others.
    return str(found.value), found.value.facts, float(total[0])


@pytest.mark.parametrize("looks_up_together", [True, False])
@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("placement", ["rows", "table", "replicate", "auto"])
def test_all_ranks_raise_the_error_of_one(
    ranks: Ranks, placement: str, is_trained: bool, looks_up_together: bool
) -> None:
    batches = [batch_of(), batch_of(sites=((3, 70), (-1, 99)))]
    one, other = ranks(2, error_on, placement, batches, is_trained, looks_up_together)
    assert one == other
    text, facts, total = one
    assert "table 'sites' has 70 rows" in text
    assert "On rank 1: 2 of 3 ids of feature 'sites': 70 in row 0, column 1; -1 in row 1, column 0. Give" in text
    assert facts == {"table": "sites", "bad": 2, "rank": 1, "feature": "feature 'sites'", "row": 0, "id": 70}
    assert total == 2


def test_errors_of_several_ranks_are_one(ranks: Ranks) -> None:
    batches = [batch_of(), batch_of(user=(1, 700)), batch_of(user=(-3, 2))]
    found = ranks(3, error_on, "rows", batches, True)
    assert "On rank 1: 1 of 2 ids of feature 'user': 700 in row 1. On rank 2: 1 of 2" in found[0][0]
    assert found[0] == found[1] == found[2]


def test_alone_the_error_names_table_feature_row_and_id() -> None:
    text, facts, _ = error_on(SingleProcessCollective(), "auto", [batch_of(user=(1, 1 << 40))], True)
    assert "On rank 0: 1 of 2 ids of feature 'user': 1099511627776 in row 1. Give" in text
    assert facts["id"] == 1 << 40


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda table: table(torch.tensor([[1, 70, 2], [3, -1, 99]])), "70 in row 0, column 1; -1 in row 1, column 1"),
        (lambda table: table(torch.tensor([-5])), "1 of 1 ids: -5 in row 0. "),
        (lambda table: table(torch.full((3, 2, 2), 80)), "column 1; 80 in row 1, column 0; and others"),
        (lambda table: table(torch.tensor([1, 2, 71]), torch.tensor([2, 0, 1]), pool="sum"), "71 in row 2. "),
        (lambda table: table(torch.tensor([0, 0, 71]), offsets=torch.tensor([0, 1]), pool="mean"), "71 in row 1. "),
    ],
)
def test_row_of_a_batch_is_that_of_the_ids(call: Callable[[Table], Tensor], words: str) -> None:
    model = TwoTables()
    ModelTables(model, Tables(RowSGD(lr=1.0)), SingleProcessCollective(), seed=3)
    with pytest.raises(BadJob, match="table 'sites' has 70 rows") as found:
        call(model.sites)
    assert words in str(found.value)
