"""Data parallel training over Horovod: gradients are averaged in fixed buckets, or combined by Adasum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from forebay.training.collectives.adasum import adasum
from forebay.training.driver.horovod.collective import HorovodCollective
from forebay.training.driver.horovod.gradients import Reduce, ReducedGradients
from forebay.training.strategies.ddp import DataParallel
from forebay.training.strategies.strategy import Strategies


class HorovodDataParallel(DataParallel):
    """`Strategy` over Horovod's global process set."""

    _gradients: ReducedGradients | None = None

    def reduce_gradients(self, model: nn.Module) -> nn.Module:
        collective = self._collective
        assert isinstance(collective, HorovodCollective), "many ranks of this driver speak Horovod"
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        reduce, scale = self._reducer(collective)
        name = collective.next_model_name()
        collective.broadcast_tensors([*model.parameters(), *model.buffers()], f"{name}.state")
        self._gradients = ReducedGradients(trained, reduce, scale=scale, name=f"{name}.gradients")
        if any(True for _ in model.buffers()):

            def broadcast_statistics(module: nn.Module, _inputs: Any) -> None:
                # Only when all ranks compute the same: a rank may evaluate more often than the others.
                if module.training and torch.is_grad_enabled():
                    collective.broadcast_tensors(module.buffers(), f"{name}.buffers")

            # Statistics that ranks collect, such as those of batch norm, follow rank 0, as under DDP.
            model.register_forward_pre_hook(broadcast_statistics)
        return model

    def accumulating(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gradients is None else self._gradients.accumulating()

    def _reducer(self, collective: HorovodCollective) -> tuple[Reduce, float]:
        """Function that reduces a flat tensor, and the factor to multiply it with before."""

        def mean(flat: torch.Tensor, _lengths: Sequence[int], name: str) -> Callable[[], torch.Tensor]:
            return collective.all_reduce_async(flat, name)

        def adaptive(flat: torch.Tensor, lengths: Sequence[int], _name: str) -> Callable[[], torch.Tensor]:
            def wait() -> torch.Tensor:
                gradients, used = torch.split(flat, [sum(lengths[:-1]), lengths[-1]])
                tensors = collective.tensor_collectives()
                return torch.cat([adasum(gradients, lengths[:-1], tensors), tensors.all_reduce(used)])

            return wait

        # Not Horovod's own Adasum: it needs MPI, and world sizes that are a power of two.
        return (adaptive, 1.0) if self._options.reduction == "adasum" else (mean, 1 / collective.world.size)


HOROVOD_STRATEGIES: Strategies = {"ddp": HorovodDataParallel}
