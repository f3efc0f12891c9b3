"""Weights in bf16 that are rounded at random: exact in the mean, and repeatable."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from forebay.errors import InvalidOption
from forebay.llm import optimizers
from forebay.llm.optimizers import RoundedAdamW, build_optimizer, hashed, noise, rounded

CPU = torch.device("cpu")
RATE: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}


def test_the_mean_over_all_noise_is_the_value() -> None:
    drawn = torch.randn(30, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-20, 10)
    values = torch.cat([drawn, torch.tensor([0.0, -0.0, 1.0, -1.5, 1e-40, float("inf"), float("-inf")])])
    every = torch.arange(1 << 16, dtype=torch.int32)
    found = torch.stack([rounded(each.expand(len(every)), every) for each in values])
    assert torch.equal(found.bfloat16().float(), found), "all are numbers of bf16"
    assert torch.equal(found.double().mean(dim=1), values.double())
    assert rounded(torch.tensor([float("nan")]), every[-1:]).isnan().all()


def test_noise_belongs_to_the_element() -> None:
    whole = noise(hashed(7, 3, 1), 0, 100_000, CPU)
    assert torch.equal(torch.cat([noise(hashed(7, 3, 1), at, 25_000, CPU) for at in range(0, 100_000, 25_000)]), whole)
    assert int(whole.min()) >= 0 and int(whole.max()) < 1 << 16
    assert whole.double().mean() / 65_535 == pytest.approx(0.5, abs=0.005)
    others = [noise(hashed(*each), 0, 100_000, CPU) for each in ((8, 3, 1), (7, 4, 1), (7, 3, 2))]
    for other in others:
        both = torch.corrcoef(torch.stack([whole, other]).double())[0, 1]
        assert abs(float(both)) < 0.02
    far = noise(hashed(7, 3, 1), (1 << 33) - 2, 4, CPU)
    assert len(set(far.tolist())) == 4


def trained(kind: Any, dtype: torch.dtype, steps: int, **options: Any) -> tuple[list[torch.Tensor], Any]:
    generator = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((300, 7), (11,))]
    optimizer = kind([{"params": parameters}], **RATE, **options)
    for _ in range(steps):
        step(parameters, optimizer, generator)
    return [each.detach().clone() for each in parameters], (parameters, optimizer, generator)


def step(parameters: list[nn.Parameter], optimizer: Any, generator: torch.Generator) -> None:
    for each in parameters:
        each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)
    optimizer.step()


def test_steps_in_float32_are_those_of_adamw() -> None:
    ours, _ = trained(RoundedAdamW, torch.float32, 5)
    theirs, _ = trained(torch.optim.AdamW, torch.float32, 5)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_run_that_goes_on_repeats_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.llm.optimizers.BLOCK", 64)
    straight, _ = trained(RoundedAdamW, torch.bfloat16, 6, seed=3)
    _, (parameters, optimizer, generator) = trained(RoundedAdamW, torch.bfloat16, 4, seed=3)
    state = copy.deepcopy(optimizer.state_dict())
    again = RoundedAdamW([{"params": parameters}], **RATE)
    again.load_state_dict(state)
    assert all(again.state[each]["exp_avg"].dtype == torch.float32 for each in parameters)
    for _ in range(2):
        step(parameters, again, generator)
    assert all(torch.equal(one, other) for one, other in zip(parameters, straight, strict=True))
    other, _ = trained(RoundedAdamW, torch.bfloat16, 6, seed=4)
    assert not torch.equal(other[0], straight[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transposed_weight_is_trained_as_any_other(dtype: torch.dtype) -> None:
    values = torch.randn((6, 8), generator=torch.Generator().manual_seed(2)).to(dtype)
    transposed = nn.Parameter(values.T.contiguous().T)
    assert not transposed.is_contiguous()
    plain, parameters = nn.Parameter(values.clone()), []
    for each in (plain, transposed):
        optimizer = RoundedAdamW([{"params": [each]}], **RATE)
        for _ in range(3):
            each.grad = values.clone()
            optimizer.step()
        parameters.append(each.detach())
    assert torch.equal(*parameters) and not torch.equal(plain, values)


def test_a_compiler_that_fails_is_said_and_not_needed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: failing)
    monkeypatch.setattr(optimizers, "_example", lambda *_: ())
    types = torch.bfloat16, torch.float32
    change, _ = optimizers._change_of.__wrapped__(torch.device("cuda", 0), *types)
    assert change is optimizers._change_of(CPU, *types)[0]
    assert "no C compiler" in caplog.text


@pytest.mark.parametrize("gradient", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float32])
def test_the_compiled_step_is_the_plain_one(weight: torch.dtype, gradient: torch.dtype) -> None:
    """Traced as on a GPU, for each pair of types, without its kernel. A last part may have one element."""
    torch._dynamo.reset()
    traced = torch.compile(optimizers._change, dynamic=True, backend="eager", fullgraph=True)
    for length in (4096, 7, 1):
        *own, shares, numbers, at = optimizers._example(CPU, weight, gradient)
        plain = [*(each[:length] for each in own), shares, numbers, at]
        generator = torch.Generator().manual_seed(length)
        for each in plain[:3]:
            each.copy_(torch.randn(length, generator=generator))
        others = copy.deepcopy(plain)
        optimizers._change(*plain)
        traced(*others)
        assert [each.dtype for each in plain[:4]] == [weight, gradient, torch.float32, torch.float32]
        torch.testing.assert_close(plain[1:4], others[1:4], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            plain[0], others[0], rtol=1e-2, atol=1e-2
        )  # a value next to a bound may be rounded to the other side
        assert plain[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_types_whose_steps_would_be_lost_are_refused(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=dtype))
    with pytest.raises(InvalidOption, match=str(dtype).removeprefix("torch.")):
        RoundedAdamW([weight], lr=1e-3)
    optimizer = RoundedAdamW([nn.Parameter(torch.zeros(3))], lr=1e-3)
    with pytest.raises(InvalidOption, match="float32 or bf16"):
        optimizer.add_param_group({"params": [weight]})


def test_small_steps_are_not_lost() -> None:
    """A thousand steps of 1e-5 from 1.0, whose next number in bf16 is 0.0078 away."""
    weight = nn.Parameter(torch.ones(4000, dtype=torch.bfloat16))
    optimizer = RoundedAdamW([weight], lr=1e-5)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert weight.float().mean().item() == pytest.approx(1 - 1e-3, abs=3e-4)
    assert torch.equal(torch.ones(1, dtype=torch.bfloat16) - 1e-5, torch.ones(1, dtype=torch.bfloat16))


def test_optimizers_by_type_and_device() -> None:
    def built(name: Any, dtype: torch.dtype) -> Any:
        groups = [{"params": [nn.Parameter(torch.zeros(2, 2, dtype=dtype))]}]
        return build_optimizer(name, groups, lr=1e-3, betas=(0.9, 0.999), seed=1)

    assert type(built("adamw", torch.float32)) is torch.optim.AdamW
    assert type(built("adamw", torch.bfloat16)) is RoundedAdamW
    with pytest.raises(InvalidOption, match="updates whole weights on a GPU, and here they are on cpu"):
        built("adamw8bit", torch.float32)
