"""Sparse gradients are clipped as torch clips dense ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from forebay.training.strategies.clipping import clip_gradients


def clipped(max_norm: float, *, sparse: bool) -> tuple[float, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.tensor([1, 3, 1, 1])).square().sum().backward()
    norm = float(clip_gradients(optimizer, max_norm))
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return norm, [each.to_dense() for each in gradients]


@pytest.mark.parametrize("max_norm", [0.01, 1e6])
def test_sparse_gradients_are_clipped_as_dense_ones(max_norm: float) -> None:
    (norm, gradients), (wanted, dense) = clipped(max_norm, sparse=True), clipped(max_norm, sparse=False)
    assert norm == pytest.approx(wanted)
    torch.testing.assert_close(gradients, dense)
    assert float(torch.cat([each.reshape(-1) for each in gradients]).norm()) == pytest.approx(min(norm, max_norm))
