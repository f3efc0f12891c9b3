"""Throughput, FLOP/s, MFU and peak memory per step."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forebay.data.loader.batch import Batch
from forebay.errors import InvalidOption
from forebay.llm.cost.flops import TokenFlops, count_flops
from forebay.llm.cost.known_models import model_config
from forebay.llm.packing import TARGET
from forebay.llm.recipe import Recipe
from forebay.llm.token_batch import document_tokens, unpack
from forebay.llm.tokens import TOKENS
from forebay.training.state.metric import Metric, WeightedMean

PEAK_FLOPS: Mapping[str, float] = {
    "A100": 312e12,
    "A10G": 70e12,
    "A6000": 154.85e12,
    "B200": 2.25e15,
    "GB200": 2.5e15,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H20": 148e12,
    "H200": 989e12,
    "L4": 121e12,
    "L40S": 362e12,
    "MI300X": 1307e12,
    "V100": 125e12,
}
"""Dense products in bf16, of a V100 in fp16, by a part of the device's name."""

_MEASURED_SIZE, _MEASURED_TIMES = 512, 5
_MICRO = 1_000_000
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Tokens and FLOPs of a rank's part of a step.

    Numbers, or float64 tensors on the device.

    Attributes:
        tokens: Tokens of the rows.
        document_tokens: Tokens of documents, without the empty ends of rows.
        flops: FLOPs of the documents.
    """

    tokens: float
    document_tokens: float | Tensor
    flops: float | Tensor


class Meter:
    """Rates of a rank, as metrics for `worker.commit`.

    It never waits for the device.

    - `tokens_per_s`: tokens of rows, per worker.
    - `document_tokens_per_s`: the same without the empty ends of rows.
    - `tflops_per_s`: FLOPs of the documents, by `count_flops`, per device. With `targets_only`, the output layer
      counts for targets alone, as `token_loss` computes it.
    - `mfu`: their share of the device's peak. Left out for an unknown device.
    - `peak_memory_bytes`: most memory that was allocated on the GPU, or that the process had without one, in this run.

    The time of a step begins at the end of the step before, with its wait for data and its checkpoint. The mean of a
    rate over an epoch is over all its tokens and seconds. The first step of a process is not measured: kernels are
    chosen and memory is found there.
    """

    def __init__(
        self, flops: TokenFlops | None, peak: float | None, device: torch.device, *, targets_only: bool = False
    ) -> None:
        self._flops, self._peak, self._device = flops, peak, device
        self._targets_only = targets_only
        self._since: float | None = None

    @classmethod
    def of(cls, recipe: Recipe, device: torch.device) -> Meter:
        """Meter of the model of `recipe`.

        A model whose FLOPs cannot be counted has no `tflops_per_s` and no `mfu`.
        """
        try:
            spec = recipe.model
            config = model_config(spec.name, spec.vocab_size, head=spec.head, new_tokens=spec.new_tokens)
            flops = count_flops(config, recipe.adapter)
        except InvalidOption as error:
            _LOGGER.warning("%s MFU is left out.", error)
            return cls(None, None, device)
        peak = device_peak(device, recipe.compute_type(device))
        return cls(flops, peak, device, targets_only=recipe.loss_chunk > 0)

    def step(self, batch: Batch) -> dict[str, Metric]:
        """Metrics of the step of `batch`.

        Call it once per step, before `commit`.
        """
        now = time.perf_counter()
        before, self._since = self._since, now
        seconds = 0.0 if before is None else now - before
        cost = step_cost(batch, self._flops, targets_only=self._targets_only)
        rates: dict[str, float | Tensor] = {
            "tokens_per_s": cost.tokens,
            "document_tokens_per_s": cost.document_tokens,
        }
        if self._flops is not None:
            rates["tflops_per_s"] = cost.flops / 1e12
            if self._peak is not None:
                rates["mfu"] = cost.flops / self._peak
        found: dict[str, Metric] = {name: _per_second(amount, seconds) for name, amount in rates.items()}
        return found | {"peak_memory_bytes": float(peak_memory(self._device))}

    def restart(self) -> None:
        """Exclude the time until now, such as an evaluation."""
        if self._since is not None:
            self._since = time.perf_counter()


def step_cost(batch: Batch, flops: TokenFlops | None, *, targets_only: bool = False) -> StepCost:
    """Tokens and FLOPs of a batch of token rows.

    A dummy row costs nothing.

    With `targets_only`, the output layer is charged for targets, and else for all tokens of documents.
    """
    packed: Tensor = batch[TOKENS]
    if batch.weight == 0:
        return StepCost(tokens=0.0, document_tokens=0.0, flops=0.0)
    position, counts = unpack(packed).position_ids, document_tokens(packed)
    documents = counts.sum().double()
    # 1 + 3 + 5 + ... to n numbers is the square of n.
    squares = ((2 * position + 1) * counts).sum().double()
    total = 0.0 if flops is None else flops.of(documents, squares)
    if flops is not None and targets_only:
        total = total - flops.output * (documents - ((packed & TARGET) != 0).sum())
    return StepCost(tokens=float(packed.numel()), document_tokens=documents, flops=total)


def reset_peak_memory(device: torch.device) -> None:
    """Forget the peak of earlier runs of this process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Peak bytes on the GPU, or of the process.

    Since `reset_peak_memory`.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Kibibytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _per_second(amount: float | Tensor, seconds: float) -> WeightedMean:
    """Rate as a mean over time.

    In whole microseconds: a mean whose weight is below 1 is divided by 1.
    """
    micro = round(seconds * _MICRO)
    return WeightedMean(total=amount * _MICRO if micro else 0.0, weight=micro)


def published_peak(name: str) -> float | None:
    """Published peak FLOP/s of a GPU, or None.

    With an assumed peak, every utilization would be wrong.

    The longest name that fits counts, and its words must be whole: an H200 is no H20, and an L40S no L4.

    >>> published_peak("NVIDIA H200"), published_peak("NVIDIA H100 80GB HBM3"), published_peak("NVIDIA H100 NVL")
    (989000000000000.0, 989000000000000.0, 835000000000000.0)
    >>> published_peak("NVIDIA A100-SXM4-80GB"), published_peak("NVIDIA L40"), published_peak("NVIDIA GeForce RTX 4090")
    (312000000000000.0, None, None)
    """
    words = f" {name.replace('-', ' ').replace('_', ' ')} "
    names = sorted(PEAK_FLOPS, key=len, reverse=True)
    return next((PEAK_FLOPS[each] for each in names if f" {each} " in words), None)


def device_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Peak FLOP/s of `device`, or None.

    For a CPU, the best of a few measured products.
    """
    if device.type == "cuda":
        return published_peak(torch.cuda.get_device_name(device))
    return measured_peak(dtype) if device.type == "cpu" else None


def measured_peak(dtype: torch.dtype) -> float:
    """Measure FLOP/s of matrix products on the CPU.

    With the threads that torch has now. Takes about 50 ms.
    """
    matrix = torch.ones(_MEASURED_SIZE, _MEASURED_SIZE, dtype=dtype)
    product = torch.empty_like(matrix)
    best = float("inf")
    for _ in range(_MEASURED_TIMES):
        began = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        best = min(best, time.perf_counter() - began)
    return float(2 * _MEASURED_SIZE**3 / best)
