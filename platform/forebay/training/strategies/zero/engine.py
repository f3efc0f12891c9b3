"""DeepSpeed engines, each built for one world.

Names of DeepSpeed that are not public are used in this room alone, and were checked on 0.19.8.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

BUCKET_ELEMENTS = 50_000_000
"""Elements of one reduction or gather. DeepSpeed's own 5e8 would take 2 GB for each of its buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroStage:
    """Stage of ZeRO, and whether it offloads.

    Optimizer states and master weights are then in main memory.
    """

    number: int
    is_offloaded: bool

    def config(self) -> Mapping[str, Any]:
        """Return DeepSpeed's configuration.

        Float32, the caller's optimizer, no clipping and no schedule of its own.
        """
        zero: dict[str, Any] = {
            "stage": self.number,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
        }
        if self.number == 3:
            # Small parameters are sharded too: each rank holds its part of the model and no more.
            zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": BUCKET_ELEMENTS}
        if self.is_offloaded:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": zero,
            "steps_per_print": 1 << 40,
            "zero_allow_untested_optimizer": True,
            # Its CPU Adam is compiled for minutes at first use.
            "zero_force_ds_cpu_optimizer": False,
        }


def build_engine(model: nn.Module, optimizer: Optimizer, stage: ZeroStage) -> Any:
    """Build DeepSpeed's engine of a model.

    Over the default process group, within `engine_environment`.
    """
    import deepspeed  # noqa: PLC0415 - an extra, which takes seconds to import

    # It would be compiled at the start. If a worker is killed meanwhile, its lock file stays, and others wait for it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r".*(all_gather_into|reduce_scatter)_tensor. is deprecated", FutureWarning)
    config = dict(stage.config())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    # The caller decides whether a forward pass runs in lower precision. The engine would switch that off.
    engine.torch_autocast_enabled = lambda: torch.is_autocast_enabled(engine.device.type)
    engine.torch_autocast_dtype = lambda: torch.get_autocast_dtype(engine.device.type)
    return engine


def forget_engine(engine: Any) -> None:
    """Remove an engine's hooks and DeepSpeed's module globals.

    The next world of this process needs new process groups. Newcomers there count modules and parameters from 0, and
    stage 3 compares these numbers over ranks. Stage 3 also leaves its own linear function in torch, whose gradients
    come in another order: beside newcomers without it, stage 2 reduced the gradients of different parameters together.
    """
    from deepspeed.comm import comm  # noqa: PLC0415 - see above
    from deepspeed.runtime.zero.linear import zero3_linear_wrap  # noqa: PLC0415
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload  # noqa: PLC0415
    from deepspeed.runtime.zero.partition_parameters import (  # noqa: PLC0415
        Init,
        InsertPostInitMethodToModuleSubClasses,
    )
    from deepspeed.utils import groups  # noqa: PLC0415

    engine.destroy()
    comm.cdb = None
    groups._release_process_group_references()  # noqa: SLF001
    if nn.functional.linear is zero3_linear_wrap:
        nn.functional.linear = InsertPostInitMethodToModuleSubClasses.linear_bk
    Init.param_id = 0
    DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0  # noqa: SLF001


@contextmanager
def engine_environment(device: torch.device) -> Iterator[None]:
    """Set the variables that DeepSpeed reads its device from.

    When it is imported and while it trains.
    """
    wanted = {"LOCAL_RANK": str(device.index or 0), "DS_ACCELERATOR": device.type}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def lone_process_group(device: torch.device) -> Iterator[None]:
    """Make a process group of one rank, if needed.

    It is left at the end.
    """
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
