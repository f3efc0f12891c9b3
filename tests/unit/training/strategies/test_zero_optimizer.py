"""The optimizer under ZeRO refuses what it cannot do."""

from __future__ import annotations

import pytest
import torch

from forebay.errors import BadJob
from forebay.training.strategies.zero.optimizer import ZeroOptimizer


def test_a_step_with_a_closure_is_refused() -> None:
    base = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(BadJob, match=r"optimizer\.step\(closure\).*worker\.backward"):
        ZeroOptimizer(base).step(lambda: 0.0)
