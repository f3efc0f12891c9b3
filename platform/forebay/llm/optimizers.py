"""Optimizers of a fine-tuning, also for weights in bf16.

A small step of a weight in bf16 is lost if it is rounded to the nearest. Rounded at random, with a chance that grows
with the distance, it counts in the mean (Gupta et al. 2015, arXiv 1502.02551).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.training.strategies.sharded_state import sharded_region

log = logging.getLogger(__name__)

OptimizerName: TypeAlias = Literal["adamw", "adamw8bit"]
"""AdamW with moments in float32, or in blocks of 8 bits by bitsandbytes (Dettmers et al. 2021, arXiv 2110.02861)."""

BLOCK = 1 << 24
"""Elements that are updated at a time: their copies in float32 take memory."""
_GPU_BLOCK = 1 << 30
"""The same on a GPU, which makes no copies: elements are numbered in 32 bits."""
_MASK = (1 << 64) - 1
_MOMENTS = "exp_avg", "exp_avg_sq"
Groups: TypeAlias = Sequence[dict[str, Any]]


def build_optimizer(
    name: OptimizerName, groups: Groups, *, lr: float, betas: tuple[float, float], seed: int
) -> Optimizer:
    """Optimizer of parameters in groups, which are on their device.

    Raises `InvalidOption` for one that cannot train them.
    """
    trained: list[Tensor] = [each for group in groups for each in group["params"]]
    if name == "adamw8bit":
        return _in_8_bits(groups, trained, lr, betas)
    if any(each.dtype == torch.bfloat16 for each in trained):
        return RoundedAdamW(groups, lr=lr, betas=betas, seed=seed)
    # One kernel on a GPU. The others need a copy of all moments for a moment, 4 bytes for each weight.
    is_fused = bool(trained) and all(each.device.type == "cuda" for each in trained)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=is_fused or None)


def in_float32(model: nn.Module) -> nn.Module:
    """Model whose trained parameters are float32.

    Layers that are trained whole beside an adapter are copies of frozen ones, which may be in bf16.
    """
    for each in model.parameters():
        if each.requires_grad:
            each.data = each.data.float()
    return model


def _in_8_bits(groups: Groups, trained: Sequence[Tensor], lr: float, betas: tuple[float, float]) -> Optimizer:
    with extra_package("bitsandbytes", "optimizer='adamw8bit'"):
        import bitsandbytes  # noqa: PLC0415 - an extra, which takes seconds to import
    others = sorted({each.device.type for each in trained} - {"cuda"})
    if others or any(isinstance(each, DTensor) for each in trained):
        where = "in parts (strategy='fsdp2')" if not others else f"on {', '.join(others)}"
        raise InvalidOption(
            f"optimizer='adamw8bit' updates whole weights on a GPU, and here they are {where}. Set optimizer='adamw'.",
            optimizer="adamw8bit",
        )
    found: Optimizer = bitsandbytes.optim.AdamW8bit([*groups], lr=lr, betas=betas)
    return found


class RoundedAdamW(Optimizer):
    """AdamW of weights in bf16.

    Moments are float32, and new weights are rounded at random. The noise of an element is a hash of seed, step,
    parameter and element, so a run repeats it: after a restart, and on any number of ranks that hold parts of the
    weights. Loshchilov and Hutter 2019, arXiv 1711.05101.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "seed": seed})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters. Raises `InvalidOption` for other types than bf16 and float32."""
        super().add_param_group(param_group)
        found = {str(each.dtype).removeprefix("torch.") for each in self.param_groups[-1]["params"]}
        if others := sorted(found - {"bfloat16", "float32"}):
            raise InvalidOption(
                f"RoundedAdamW trains weights in bf16 and float32, and some are {' and '.join(others)}: they would be "
                "cut to float32, or lose small steps. Train them in float32 or bf16, or with torch.optim.AdamW.",
                dtypes=others,
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None if closure is None else closure()
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, number)
                number += 1
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments in their own type.

        torch would give them the type of the weights.
        """
        super().load_state_dict(state_dict)
        parameters = [each for group in self.param_groups for each in group["params"]]
        for number, values in state_dict["state"].items():
            own = self.state[parameters[number]]
            for name in _MOMENTS:
                own[name] = values[name].detach().to(parameters[number].device, torch.float32, copy=True)

    def _update(self, parameter: nn.Parameter, group: Mapping[str, Any], number: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        state["step"] += 1
        steps = int(state["step"])
        key = hashed(group["seed"], steps, number)
        (first, second), start = group["betas"], first_element(parameter)
        kept = [_local(each) for each in (parameter, *(state[name] for name in _MOMENTS))]
        changed = weight, mean, square = [each.reshape(-1) for each in kept]
        assert parameter.grad is not None, "step() asks"
        own = weight, _local(parameter.grad).reshape(-1), mean, square
        rates = (
            1 - group["lr"] * group["weight_decay"],
            group["lr"] / (1 - first**steps),
            math.sqrt(1 - second**steps),
            group["eps"],
        )
        change, block = _change_of(parameter.device, parameter.dtype, parameter.grad.dtype)
        numbers = torch.tensor(rates, dtype=torch.float32).to(parameter.device, non_blocking=True)
        for begin in range(0, len(own[0]), block):
            at = torch.tensor((_signed(key), _signed((start + begin) & 0xFFFFFFFF)), dtype=torch.int32)
            parts = (each[begin : begin + block] for each in own)
            change(*parts, (1 - first, second), numbers, at.to(parameter.device, non_blocking=True))
        for each, flat in zip(kept, changed, strict=True):
            if not each.is_contiguous():  # its elements may have been copied
                each.copy_(flat.view_as(each))


def _change(  # noqa: PLR0913, PLR0917 - tensors by themselves: torch compiles them, and no object of them
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    shares: tuple[float, float],
    numbers: Tensor,
    at: Tensor,
) -> None:
    """Change elements and their moments.

    `shares` are those of the gradient in the mean, and of the squares before. `numbers` are the share of a weight that
    stays, the step size, the correction of the root and epsilon; `at` the key and the first element.
    """
    new, old = shares
    keep, size, correction, eps = numbers.unbind()
    gradient = gradient.float()
    mean.lerp_(gradient, new)
    square.mul_(old).addcmul_(gradient, gradient, value=1 - old)
    below = square.sqrt().div_(correction).add_(eps)
    value = weight.float() * keep - mean / below * size
    if weight.dtype == torch.bfloat16:
        value = rounded(value, _noise(at[0], at[1], len(value)))
    weight.copy_(value)


@cache
def _change_of(device: torch.device, weight: torch.dtype, gradient: torch.dtype) -> tuple[Callable[..., None], int]:
    """`_change` for a device and types of weights and gradients, and the elements that it takes at a time.

    On a GPU torch makes one kernel of it, for tensors of any length. Operation by operation, it took 113 of the 291 ms
    of a step of a billion weights on an H200, and copies of 4 bytes a weight.
    """
    if device.type != "cuda":
        return _change, BLOCK
    compiled: Callable[..., None] = torch.compile(_change, dynamic=True)
    try:
        compiled(*_example(device, weight, gradient))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - of any part of a compiler that torch calls, such as a missing gcc
        log.warning("torch cannot compile the optimizer of weights in %s, which is slower without: %s", weight, error)
        return _change, BLOCK
    return compiled, _GPU_BLOCK


def _example(device: torch.device, weight_type: torch.dtype, gradient_type: torch.dtype) -> tuple[Any, ...]:
    """Arguments of `_change`."""
    weight, gradient = (torch.zeros(4096, dtype=each, device=device) for each in (weight_type, gradient_type))
    mean, square, numbers = torch.ones((3, 4096), device=device)
    return (
        weight,
        gradient,
        mean,
        square,
        (0.1, 0.9),
        numbers[:4].clone(),
        torch.zeros(2, dtype=torch.int32, device=device),
    )


def rounded(values: Tensor, noise: Tensor) -> Tensor:
    """Round float32 to numbers of bf16 at random.

    `noise` is int32 from 0 to 65,535. Over all noise, the mean is the value. What is not finite stays.
    """
    bits = (values.view(torch.int32) + noise) & -65_536
    return torch.where(values.isfinite(), bits.view(torch.float32), values)


def noise(key: int, start: int, count: int, device: torch.device) -> Tensor:
    """Random int32 from 0 to 65,535.

    For `count` elements from number `start` on. A hash of their numbers (the finaliser of lowbias32, Wellons 2018), in
    32 bits that wrap around.
    """
    at = torch.tensor((_signed(key), _signed(start & 0xFFFFFFFF)), dtype=torch.int32, device=device)
    return _noise(at[0], at[1], count)


def _noise(key: Tensor, start: Tensor, count: int) -> Tensor:
    found = (torch.arange(count, dtype=torch.int32, device=key.device) + start) ^ key
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        found = found ^ ((found >> shift) & ((1 << (32 - shift)) - 1))
        found = found * _signed(factor)
    return (found ^ ((found >> 16) & 0xFFFF)) & 0xFFFF


def hashed(*numbers: int) -> int:
    """32 bits of whole numbers, by the finaliser of splitmix64."""
    found = 0
    for each in numbers:
        found = (found + each + 0x9E3779B97F4A7C15) & _MASK
        found = ((found ^ (found >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        found = ((found ^ (found >> 27)) * 0x94D049BB133111EB) & _MASK
        found ^= found >> 31
    return found & 0xFFFFFFFF


def first_element(parameter: Tensor) -> int:
    """Number of this rank's first element in the whole parameter."""
    if not isinstance(parameter, DTensor):
        return 0
    offsets, _ = sharded_region(tuple(parameter.shape), parameter.device_mesh)
    return int(offsets[0]) * math.prod(parameter.shape[1:]) if offsets else 0


def _local(values: Tensor) -> Tensor:
    own: Tensor = values.to_local() if isinstance(values, DTensor) else values
    return own


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits
