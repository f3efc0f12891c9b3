"""`Collective` over Horovod.

gloo between CPUs, NCCL between GPUs if Horovod was built with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch

from forebay.world import World

T = TypeVar("T")
V = TypeVar("V")

# Names are the same on all ranks and in all worlds: the names that Horovod counts itself differ between an old process
# and a new one. A name may be used again as soon as its operation is over, and ours are over when the method returns.
_ALL_REDUCE, _ALL_GATHER = "forebay/all_reduce", "forebay/combine"
_SIZE, _BROADCAST = "forebay/broadcast_object/size", "forebay/broadcast_object"
_ALL_TO_ALL, _GATHER_TENSOR = "forebay/tensors/all_to_all", "forebay/tensors/all_gather"
_EXCHANGE = "forebay/tensors/exchange"
_REDUCE_TENSOR, _BROADCAST_TENSOR = "forebay/tensors/all_reduce", "forebay/tensors/broadcast"
PIECE_BYTES = 1 << 30
_SENT_AS_THEY_ARE = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8)


class HorovodCollective:
    """`Collective` over Horovod's global process set.

    It must be initialized: see `horovod_world`. Every wait for other ranks is inside `patience`.
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
        self._num_models = 0

    def next_model_name(self) -> str:
        """Return a name for the operations of another model.

        It is the same on all ranks, and used once in this world.
        """
        self._num_models += 1
        return f"forebay.model{self._num_models - 1}"

    def tensor_collectives(self) -> HorovodTensorCollectives:
        """Collectives on tensors, for reductions that Forebay computes itself."""
        return HorovodTensorCollectives(self._patience)

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(values.copy())
        with self._patience:
            self._hvd.allreduce_(total, op=self._hvd.Sum, name=_ALL_REDUCE)
        return total.numpy()

    def combine(self, value: V, decide: Callable[[Sequence[V]], T]) -> T:
        # Horovod has no gather. With all values on every rank, one collective is enough.
        with self._patience:
            gathered = self._hvd.allgather(_packed(value), name=_ALL_GATHER)
        # A pickle knows where it ends. So the ranks need not exchange the sizes, which would be another collective.
        stream = io.BytesIO(gathered.numpy())
        return decide([cloudpickle.load(stream) for _ in range(self.world.size)])

    def broadcast_object(self, value: T) -> T:
        packed = _packed(value) if self.world.is_first else torch.empty(0, dtype=torch.uint8)
        with self._patience:
            size = self._hvd.broadcast(torch.tensor([packed.numel()]), root_rank=0, name=_SIZE).item()
            if not self.world.is_first:
                packed = torch.empty(size, dtype=torch.uint8)
            # In pieces: Horovod sometimes counts in 32 bits, and a state may be larger.
            for piece in torch.split(packed, PIECE_BYTES):
                self._hvd.broadcast_(piece, root_rank=0, name=_BROADCAST)
        shared: T = value if self.world.is_first else _unpacked(packed)
        return shared

    def all_reduce_async(self, flat: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        """Begin to sum `flat` over ranks, in place.

        Returns a function that waits for the sum.
        """
        handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name=name)

        def wait() -> torch.Tensor:
            with self._patience:
                reduced: torch.Tensor = self._hvd.synchronize(handle)
                return reduced

        return wait

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Iterable[torch.Tensor], name: str) -> None:
        """Copy rank 0's values into `tensors` on all ranks.

        Tensors of one dtype and device travel in one message.
        """
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.numel():
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for number, group in enumerate(kinds.values()):
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            with self._patience:
                self._hvd.broadcast_(_sendable(flat), root_rank=0, name=f"{name}.{number}")
            for tensor, part in zip(group, torch.split(flat, [tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))


def is_broken(error: BaseException | None) -> bool:
    """Whether `error` follows from a broken world.

    It may be Horovod's own error for one.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # Compared by name, because Horovod may not be installed.
        if type(error).__name__ == "HorovodInternalError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _sendable(values: torch.Tensor) -> torch.Tensor:
    """Return contiguous values as Horovod takes them: of a type that it does not know, such as bool, the bytes."""
    return values if values.dtype in _SENT_AS_THEY_ARE else values.view(torch.uint8)


def _packed(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(value)), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> Any:
    return cloudpickle.loads(packed.numpy())


class HorovodTensorCollectives:
    """`TensorCollectives` over Horovod's global process set.

    Every wait for other ranks is inside `patience`.
    """

    def __init__(self, patience: AbstractContextManager[object]) -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - an extra

        self._hvd: Any = hvd
        self._patience = patience
        self.rank: int = hvd.rank()
        self.world_size: int = hvd.size()

    def all_to_all(self, buffers: torch.Tensor) -> torch.Tensor:
        count, length = buffers.shape
        outgoing = buffers.view(count, self.world_size, -1).transpose(0, 1).contiguous()
        splits = torch.ones(self.world_size, dtype=torch.int32)  # of the first dimension: one slice for each rank
        with self._patience:
            incoming, _ = self._hvd.alltoall(_sendable(outgoing), splits, name=_ALL_TO_ALL)
        received: torch.Tensor = incoming.view(buffers.dtype).view(self.world_size, count, length // self.world_size)
        return received

    def exchange(
        self,
        rows: torch.Tensor,
        send: Sequence[int],
        receive: Sequence[int] | None = None,  # noqa: ARG002 - it finds out
    ) -> tuple[torch.Tensor, Sequence[int]]:
        with self._patience:
            received, counts = self._hvd.alltoall(
                rows.contiguous(), torch.tensor(send, dtype=torch.int32), name=_EXCHANGE
            )
        return received, counts.tolist()

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        with self._patience:
            whole: torch.Tensor = self._hvd.allgather(_sendable(part.contiguous()), name=_GATHER_TENSOR)
        return whole.view(part.dtype)

    def all_reduce(self, values: torch.Tensor) -> torch.Tensor:
        with self._patience:
            total: torch.Tensor = self._hvd.allreduce(values, op=self._hvd.Sum, name=_REDUCE_TENSOR)
        return total

    def broadcast(self, values: torch.Tensor) -> None:
        flat = values.reshape(-1)
        with self._patience:
            self._hvd.broadcast_(_sendable(flat), root_rank=0, name=_BROADCAST_TENSOR)
        values.copy_(flat.view_as(values))
