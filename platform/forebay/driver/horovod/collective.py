"""Workers that speak Horovod: gloo between CPUs, NCCL between GPUs where Horovod was built with it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch
from torch import nn

from forebay.driver.horovod.gradients import Reduce, ReducedGradients
from forebay.driver.horovod.tensor_collectives import HorovodTensorCollectives
from forebay.train.collectives.adasum import adasum
from forebay.train.collectives.collective import Reduction
from forebay.world import World

T = TypeVar("T")

# Names are the same on all ranks and in all worlds: Horovod's own, counted ones differ between an old process and a
# new one. One may be used again as soon as the operation is over, which each of ours is when the method returns.
_SUM, _GATHER, _SIZE, _SHARE = "forebay.sum", "forebay.gather", "forebay.size", "forebay.share"
PIECE_BYTES = 1 << 30


class HorovodCollective:
    """`Collective` over Horovod's global process set, which must be initialised: see `horovod_world`.

    Whatever waits for other ranks does so within `patience`.
    """

    def __init__(
        self, world: World, device: torch.device | str = "cpu", patience: AbstractContextManager[object] | None = None
    ) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - an extra

        assert (hvd.rank(), hvd.size()) == (world.rank, world.size), "World of another Horovod"
        self.world = world
        self.device = torch.device(device)
        self._hvd: Any = hvd
        self._patience: AbstractContextManager[object] = patience or nullcontext()
        self._num_wrapped = 0

    def wrap(self, model: nn.Module, reduction: Reduction = "mean") -> nn.Module:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.world.size == 1 or not trained or reduction == "exact":
            return model  # the exact mean has a backward() of its own
        reduce, scale = self._reducer(reduction)
        name, self._num_wrapped = f"forebay.model{self._num_wrapped}", self._num_wrapped + 1
        self._spread([*model.parameters(), *model.buffers()], f"{name}.state")
        ReducedGradients(trained, reduce, scale=scale, name=f"{name}.gradients")
        if any(True for _ in model.buffers()):

            def spread_statistics(module: nn.Module, _inputs: Any) -> None:
                # Only where all ranks compute alike: one may evaluate what, or as often as, no other does.
                if module.training and torch.is_grad_enabled():
                    self._spread(module.buffers(), f"{name}.buffers")

            # Statistics that a rank gathers, such as batch norm's, are rank 0's on all, as under DDP.
            model.register_forward_pre_hook(spread_statistics)
        return model

    def slices(self) -> HorovodTensorCollectives:
        """How ranks exchange for reductions of Forebay's own."""
        return HorovodTensorCollectives(self._patience)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(values.copy())
        with self._patience:
            self._hvd.allreduce_(total, op=self._hvd.Sum, name=_SUM)
        return total.numpy()

    def gather(self, value: T) -> list[T]:
        with self._patience:
            gathered = self._hvd.allgather(_packed(value), name=_GATHER)
        # A pickle knows where it ends: nobody has to be told the sizes, which would be another exchange.
        stream = io.BytesIO(gathered.numpy())
        return [cloudpickle.load(stream) for _ in range(self.world.size)]

    def share(self, value: T) -> T:
        packed = _packed(value) if self.world.is_first else torch.empty(0, dtype=torch.uint8)
        with self._patience:
            size = self._hvd.broadcast(torch.tensor([packed.numel()]), root_rank=0, name=_SIZE).item()
            if not self.world.is_first:
                packed = torch.empty(size, dtype=torch.uint8)
            # In pieces: Horovod counts in 32 bits here and there, and a state may be larger.
            for piece in torch.split(packed, PIECE_BYTES):
                self._hvd.broadcast_(piece, root_rank=0, name=_SHARE)
        shared: T = value if self.world.is_first else _unpacked(packed)
        return shared

    def _reducer(self, reduction: Reduction) -> tuple[Reduce, float]:
        """How to reduce a flat tensor, and what to multiply it with before."""
        hvd = self._hvd

        def mean(flat: torch.Tensor, _lengths: Sequence[int], name: str) -> Callable[[], torch.Tensor]:
            handle = hvd.allreduce_async_(flat, op=hvd.Sum, name=name)

            def wait() -> torch.Tensor:
                with self._patience:
                    reduced: torch.Tensor = hvd.synchronize(handle)
                    return reduced

            return wait

        def adaptive(flat: torch.Tensor, lengths: Sequence[int], _name: str) -> Callable[[], torch.Tensor]:
            def wait() -> torch.Tensor:
                gradients, used = torch.split(flat, [sum(lengths[:-1]), lengths[-1]])
                return torch.cat([adasum(gradients, lengths[:-1], self.slices()), self.slices().total(used)])

            return wait

        # Not Horovod's own Adasum, which needs MPI, and worlds that are a power of two.
        return (adaptive, 1.0) if reduction == "adasum" else (mean, 1 / self.world.size)

    @torch.no_grad()
    def _spread(self, tensors: Iterable[torch.Tensor], name: str) -> None:
        """Rank 0's values on all ranks: those of one type and device in one message."""
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.numel():
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for number, group in enumerate(kinds.values()):
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            with self._patience:
                self._hvd.broadcast_(flat, root_rank=0, name=f"{name}.{number}")
            for tensor, part in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))


def is_broken(error: BaseException | None) -> bool:
    """Whether `error` is, or follows from, Horovod's word that the world has come apart."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # By name: where Horovod is not installed, nothing can be its error.
        if type(error).__name__ == "HorovodInternalError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _packed(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(value)), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> Any:
    return cloudpickle.loads(packed.numpy())
