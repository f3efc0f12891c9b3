"""Eval mode of a model, for a while."""

from __future__ import annotations

from typing import Self

import pytest
from torch import nn

from forebay.training.worker.eval_mode import evaluating


class Merging(nn.Module):
    """Adds its adapter to its weights in eval mode, as layers of loralib do."""

    def __init__(self) -> None:
        super().__init__()
        self.is_merged = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.is_merged = not mode
        return self


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (3,), (1, 3)])
def test_modules_train_again_as_before(frozen: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Sequential(Merging()), Merging())
    modules = list(model.modules())
    for number in reversed(frozen):
        modules[number].train(False)

    def modes() -> list[tuple[bool, bool]]:
        return [(each.training, getattr(each, "is_merged", False)) for each in modules]

    before = modes()
    with evaluating(model):
        assert not any(is_training for is_training, _ in modes())
    assert modes() == before
