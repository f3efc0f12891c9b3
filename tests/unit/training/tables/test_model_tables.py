"""Tables of one model are placed by what all of them are used for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from forebay.training.collectives.collective import Collective
from forebay.training.tables.model_tables import ModelTables
from forebay.training.tables.optimizers import RowSGD
from forebay.training.tables.options import Tables
from forebay.training.tables.placement import MEASURED_STEPS
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.table import Lookup, Table, look_up

Ranks = Callable[..., list[Any]]
ALL_ROWS, ALL_REPLICATED = ["rows"] * 4, ["replicate"] * 4


def chosen_placements(
    collective: Collective, together: bool, resumed_at: int, has_calls: bool, named: Mapping[str, str]
) -> list[str]:
    """Placements of four equal tables after they were measured. A state without calls is one of an older version."""
    model = nn.ModuleList(Table(4_200, 16) for _ in range(4))
    options = Tables(RowSGD(lr=0.1), placement=named)
    tables = ModelTables(model, options, collective, seed=3)
    for step in range(MEASURED_STEPS):
        if step == resumed_at:
            state = tables.state_dict()
            if not has_calls:
                state["measured"] = {name: counts[:3] for name, counts in state["measured"].items()}
            tables = ModelTables(model, options, collective, seed=3)
            tables.load_state_dict(state)
        generator = torch.Generator().manual_seed(100 * step + collective.world.rank)
        lookups = [Lookup(table, torch.randint(4_200, (200,), generator=generator)) for table in model]  # type: ignore[arg-type]
        found = look_up(*lookups) if together else [look_up(each)[0] for each in lookups]
        torch.stack([each.sum() for each in found]).sum().backward()
        tables.step()
        with torch.no_grad():  # An evaluation counts nothing.
            for _ in range(8):
                look_up(*(Lookup(table, torch.arange(4_200)) for table in model))  # type: ignore[arg-type]
    return [each.placement for each in tables.shared.values() if isinstance(each, SharedRows)]


@pytest.mark.parametrize(
    ("together", "resumed_at", "has_calls", "named", "wanted"),
    [
        (False, -1, True, {}, ALL_REPLICATED),
        (True, -1, True, {}, ALL_ROWS),
        (True, 7, True, {}, ALL_ROWS),
        (False, 19, False, {}, ALL_REPLICATED),
        (True, -1, True, {"0": "rows", "1": "replicate"}, ["rows", "replicate", "rows", "rows"]),
    ],
)
def test_tables_that_share_messages_are_exchanged(
    ranks: Ranks, together: bool, resumed_at: int, has_calls: bool, named: Mapping[str, str], wanted: list[str]
) -> None:
    assert ranks(2, chosen_placements, together, resumed_at, has_calls, named) == [wanted, wanted]
