"""The blocks of docs/embedding-tables.md run."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forebay as fb
from forebay.cli.tables.counted_rows import CountedRows
from forebay.training.tables.owned_rows import TableFacts

PAGE = Path(__file__).parents[3] / "docs" / "embedding-tables.md"


@pytest.mark.parametrize("name", ["Ranker", "FewMessagesRanker"])
def test_models_of_the_page_look_up_rows_and_bags(name: str) -> None:
    names: dict[str, Any] = {"fb": fb, "nn": nn, "torch": torch, "Tensor": Tensor, "partial": partial}
    exec("".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)), names)
    model = names[name]()
    for table_name, table in (("user", model.user), ("sites", model.sites)):  # Ten million rows take no memory here.
        facts = TableFacts(name=table_name, rows=table.rows, dim=table.dim, scale=table.scale)
        table.shared = CountedRows(facts, fb.tables.RowWiseAdagrad(lr=0.05), [2])
    batch = {
        "user": torch.tensor([9_999_999, 5]),
        "sites": torch.tensor([[3, 4, 0], [9, 0, 0]]),
        "sites_lengths": torch.tensor([3, 1]),
    }
    assert model(batch).shape == (2, 1)
    assert model.sites.shared.use.lookups == 3, "the padding id is none"
