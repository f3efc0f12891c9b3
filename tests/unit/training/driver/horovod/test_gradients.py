from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from forebay.errors import BadJob
from forebay.training.driver.horovod import gradients as horovod_gradients
from forebay.training.driver.horovod.gradients import Reduce, ReducedGradients


class Twin:
    """A second rank that sends `other(flat)` for every flat tensor this one sends. Returns the sum."""

    def __init__(self, other: Callable[[Tensor], Tensor] = torch.clone) -> None:
        self.other = other
        self.sent: list[str] = []

    def __call__(self, flat: Tensor, lengths: Sequence[int], name: str) -> Callable[[], Tensor]:
        assert sum(lengths) == flat.numel()
        self.sent.append(name)
        return lambda: flat.add_(self.other(flat))


def _two_layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})


def _reduce(model: nn.Module, reduce: Reduce) -> None:
    ReducedGradients(model.parameters(), reduce, scale=0.5, name="test")


def test_mean_is_there_when_backward_returns() -> None:
    model = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    (alone,) = torch.autograd.grad(model(inputs).sum(), [model.weight])
    _reduce(model, Twin(torch.zeros_like))
    model(inputs).sum().backward()
    torch.testing.assert_close(model.weight.grad, alone / 2)


def test_equal_ranks_average_to_themselves_through_several_passes() -> None:
    model = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    (alone,) = torch.autograd.grad(model(inputs).sum(), [model.weight])
    _reduce(model, Twin())
    for passes in (1, 2, 3):
        model(inputs).sum().backward()
        torch.testing.assert_close(model.weight.grad, alone * passes)


def test_passes_that_accumulate_are_reduced_with_the_last_one() -> None:
    model = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    (alone,) = torch.autograd.grad(model(inputs).sum(), [model.weight])
    twin = Twin(torch.zeros_like)
    gradients = ReducedGradients(model.parameters(), twin, scale=0.5, name="test")
    for _ in range(2):
        with gradients.accumulating():
            model(inputs).sum().backward()
    assert twin.sent == []
    torch.testing.assert_close(model.weight.grad, 2 * alone)
    model(inputs).sum().backward()
    assert len(twin.sent) == 1
    torch.testing.assert_close(model.weight.grad, 3 * alone / 2)


def test_what_only_a_pass_that_accumulates_uses_gets_the_mean() -> None:
    model = _two_layers()
    twin = Twin(torch.zeros_like)  # the other rank uses nothing
    gradients = ReducedGradients(model.parameters(), twin, scale=0.5, name="test")
    for _ in range(2):
        with gradients.accumulating():
            model["idle"](torch.ones(1, 3)).sum().backward()
        model["used"](torch.ones(1, 3)).sum().backward()
        assert torch.equal(model["idle"].weight.grad, torch.full((2, 3), 0.5))
        model.zero_grad()


def test_bfloat16_is_averaged_as_float32() -> None:
    model = _two_layers().to(torch.bfloat16)
    kinds: set[torch.dtype] = set()

    def other(flat: Tensor) -> Tensor:
        kinds.add(flat.dtype)
        return torch.ones_like(flat)

    _reduce(model, Twin(other))
    model["used"](torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert kinds == {torch.float32}
    for name, mean in (("used", 1.5), ("idle", 1.0)):
        assert torch.equal(model[name].weight.grad, torch.full((2, 3), mean, dtype=torch.bfloat16))


def test_what_no_rank_uses_keeps_its_gradient() -> None:
    model = _two_layers()
    _reduce(model, Twin())
    model["used"](torch.ones(1, 3)).sum().backward()
    assert model["idle"].weight.grad is None
    model["idle"].weight.grad = torch.full((2, 3), 7.0)
    model["used"](torch.ones(1, 3)).sum().backward()
    assert torch.equal(model["idle"].weight.grad, torch.full((2, 3), 7.0))


def test_what_only_another_rank_uses_gets_the_mean() -> None:
    model = _two_layers()
    _reduce(model, Twin(torch.ones_like))
    model["used"](torch.ones(1, 3)).sum().backward()
    assert torch.equal(model["idle"].weight.grad, torch.ones(2, 3))


def test_what_this_rank_used_in_an_earlier_pass_counts_when_only_another_uses_it_again() -> None:
    model = _two_layers()
    _reduce(model, Twin(torch.ones_like))
    model["idle"].weight.grad = torch.full((2, 3), 7.0)
    model["used"](torch.ones(1, 3)).sum().backward()
    assert torch.equal(model["idle"].weight.grad, torch.full((2, 3), 7.0 / 2 + 1))


def test_all_is_sent_in_the_same_buckets_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_gradients, "BUCKET_BYTES", 32)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    twin = Twin()
    _reduce(model, twin)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    assert sorted(set(twin.sent)) == ["test.0", "test.1", "test.2"]
    assert len(twin.sent) == 6


def test_types_travel_apart() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64)])
    twin = Twin()
    _reduce(model, twin)
    (model[0](torch.ones(1, 2)).sum() + model[1](torch.ones(1, 2, dtype=torch.float64)).sum()).backward()
    assert sorted(twin.sent) == ["test.0", "test.1"]
    assert model[1].weight.grad.dtype == torch.float64


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    _reduce(model, Twin())
    with pytest.raises(BadJob, match="sparse=False"):
        model(torch.tensor([1])).sum().backward()


def test_error_of_another_rank_comes_out_of_backward() -> None:
    def broken(_flat: Tensor, _lengths: Sequence[int], _name: str) -> Callable[[], Tensor]:
        def wait() -> Tensor:
            raise ConnectionError("the other rank is gone")

        return wait

    model = nn.Linear(3, 2)
    _reduce(model, broken)
    with pytest.raises(ConnectionError, match="gone"):
        model(torch.ones(1, 3)).sum().backward()
