"""Ids are named by the arrays that a model is called with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forebay.training.tables.lookup.batch_features import BatchFeatures

IDS = torch.tensor([[5, 9], [6, 9], [7, 8]])
BATCH = {"x": torch.rand(3, 2), "ids": IDS.int(), "label": torch.tensor(1.0), "names": ("a", "b")}


class NamingModel(nn.Module):
    """Names the ids that `chosen` returns, in the middle of a call."""

    def __init__(self, chosen: Any) -> None:
        super().__init__()
        self.chosen, self.found = chosen, ""
        self.features = BatchFeatures(self)

    def forward(self, batch: Any, users: Tensor | None = None) -> None:
        self.found = self.features.name_of(self.chosen(batch, users))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (lambda batch, _: batch["ids"].long(), "feature 'ids'"),
        (lambda batch, _: batch["ids"].flatten(), "feature 'ids'"),
        (lambda batch, _: batch["ids"][:, 1], "feature 'ids', column 1"),
        (lambda _, users: users, "argument 'users'"),
        (lambda batch, _: batch["ids"] % 7, ""),
        (lambda batch, _: batch["ids"][:2, 0], ""),
    ],
)
def test_ids_are_named_by_their_array(chosen: Any, words: str) -> None:
    model = NamingModel(chosen)
    model(BATCH, users=torch.tensor([3, 4]))
    assert model.found == words


def test_equal_arrays_are_both_named() -> None:
    model = NamingModel(lambda batch, _: batch["ids"])
    model({"ids": IDS, "again": IDS.clone()})
    assert model.found == "feature 'ids' or feature 'again'"


def test_a_batch_is_not_held_after_its_call() -> None:
    model = NamingModel(lambda batch, _: batch["missing"])
    with pytest.raises(KeyError):
        model(BATCH)
    assert model.features.name_of(IDS) == ""
