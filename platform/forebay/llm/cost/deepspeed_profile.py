"""FLOPs as DeepSpeed's profiler counts them, to compare with figures that were published with it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from forebay.llm.adapters import Lora
from forebay.llm.cost.flops import LONG, SHORT, TokenFlops, of_two_counts, one_document
from forebay.llm.cost.skeleton import over_layers, skeleton
from forebay.runtime.extras import extra_package

FORWARD_AND_BACKWARD = 3
"""The profiler counts a forward pass, and takes the backward pass for two of them, also where weights are frozen."""


def deepspeed_flops(config: Any, adapter: Lora | None = None) -> TokenFlops:
    """FLOPs by DeepSpeed's profiler (checked with 0.19): three forward passes, with those of norms and activations.

    It charges an adapter and its frozen model as if all of both were trained. Raises `InvalidOption` without deepspeed.
    """
    short, long = (over_layers(config, partial(_counted, adapter, length)) for length in (SHORT, LONG))
    return of_two_counts(short, long)


def _counted(adapter: Lora | None, length: int, config: Any) -> float:
    with extra_package("deepspeed", "profile='deepspeed'"):
        from deepspeed.profiling.flops_profiler import FlopsProfiler  # noqa: PLC0415 - an extra, slow to import
    model = skeleton(config, adapter)
    with torch.device("meta"):
        inputs = one_document(model, length)
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    try:
        model(**inputs, use_cache=False)
        return FORWARD_AND_BACKWARD * float(profiler.get_total_flops())
    finally:
        profiler.end_profile()
