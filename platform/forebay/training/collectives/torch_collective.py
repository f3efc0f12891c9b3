"""`Collective` over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from forebay.training.collectives.tensor_collectives import TorchTensorCollectives
from forebay.world import World

T = TypeVar("T")

MEET_S = 120.0
"""Minimum time in seconds that ranks wait for each other at the start, when one may still be importing."""
BOX_BYTES = 1 << 15
"""Size of a value that fits into the single exchange of a gather, as a rank's vote at a checkpoint does."""
_SIZE_BYTES = 8

TIMEOUT_WORDS = (
    "timed out waiting",
    "timeout caused pair closure",
    "collective operation timeout",
    "socket timeout",
)


class TorchCollective:
    """`Collective` over the default process group.

    The group must exist: `process_group` makes it, or Ray Train.
    """

    def __init__(self, world: World, device: torch.device | str, *, timeout_s: float) -> None:
        assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size), "World of another process group"
        self.world = world
        self.device = torch.device(device)
        # The group was made with the longer timeout that ranks need to meet. There is no public way. Checked on torch
        # 2.13.
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))  # noqa: SLF001
        # NCCL moves only tensors on its GPU.
        self._transit = self.device if dist.get_backend() == "nccl" else torch.device("cpu")

    def tensor_collectives(self) -> TorchTensorCollectives:
        return TorchTensorCollectives()

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(values.copy()).to(self._transit)
        dist.all_reduce(total)
        return total.cpu().numpy()

    def all_gather_object(self, value: T) -> list[T]:
        # One exchange if all values are small. `all_gather_object` always has a second one for the sizes.
        packed = cloudpickle.dumps(value)
        boxes = self._boxes(packed, BOX_BYTES)
        sizes = [int.from_bytes(box[:_SIZE_BYTES], "little") for box in boxes]
        if max(sizes) > BOX_BYTES:
            boxes = self._boxes(packed, max(sizes))
        return [cloudpickle.loads(box[_SIZE_BYTES:]) for box in boxes]

    def _boxes(self, packed: bytes, room: int) -> list[bytes]:
        """Gather the first `room` bytes of every rank's pickle.

        Each has its size before it.
        """
        box = (len(packed).to_bytes(_SIZE_BYTES, "little") + packed[:room]).ljust(_SIZE_BYTES + room, b"\0")
        sent = torch.frombuffer(bytearray(box), dtype=torch.uint8).to(self._transit)
        boxes = torch.empty(self.world.size * len(box), dtype=torch.uint8, device=self._transit)
        # Gather into views of one tensor: torch 2.13 renamed `all_gather_into_tensor` and warns of the old name.
        dist.all_gather(list(boxes.chunk(self.world.size)), sent)
        return [part.tobytes() for part in boxes.cpu().numpy().reshape(self.world.size, -1)]

    def broadcast_object(self, value: T) -> T:
        box = [value if self.world.is_first else None]
        dist.broadcast_object_list(box, src=0, device=self._transit)
        return box[0]  # type: ignore[return-value]


def is_timeout(error: BaseException) -> bool:
    """Whether a collective timed out on a living peer.

    torch has no class for these errors (checked on 2.13: errors of gloo, of NCCL's watchdog and of the store).
    """
    text = str(error).lower()
    return any(words in text for words in TIMEOUT_WORDS)


@contextmanager
def process_group(
    world: World, init_method: str, *, device: torch.device | str = "cpu", timeout_s: float = 120.0
) -> Iterator[TorchCollective]:
    """Join a process group for the block.

    Ranks meet at `init_method`: `tcp://host:port` or `file:///path`.

    A collective that waits longer than `timeout_s` for a peer raises. So does the meeting, after `MEET_S` at least.
    With torch's default of half an hour, a job would hang that long after the loss of a worker.
    """
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=max(timeout_s, MEET_S)),
    )
    try:
        yield TorchCollective(world, device, timeout_s=timeout_s)
    finally:
        dist.destroy_process_group()
