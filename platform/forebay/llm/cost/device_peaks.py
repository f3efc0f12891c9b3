"""Peak FLOP/s of devices: published for GPUs, measured for a CPU."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

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


def published_peak(name: str) -> float | None:
    """Peak FLOP/s of a GPU. None for an unknown one: with an assumed peak, every utilisation would be wrong.

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
    """Peak FLOP/s of `device`, or None if it is unknown. That of a CPU is measured: the best of a few products."""
    if device.type == "cuda":
        return published_peak(torch.cuda.get_device_name(device))
    return measured_peak(dtype) if device.type == "cpu" else None


def measured_peak(dtype: torch.dtype) -> float:
    """FLOP/s of products of square matrices on the CPU, with the threads that torch has now. Takes about 50 ms."""
    matrix = torch.ones(_MEASURED_SIZE, _MEASURED_SIZE, dtype=dtype)
    product = torch.empty_like(matrix)
    best = float("inf")
    for _ in range(_MEASURED_TIMES):
        began = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        best = min(best, time.perf_counter() - began)
    return float(2 * _MEASURED_SIZE**3 / best)
