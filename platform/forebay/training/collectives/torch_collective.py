"""`Collective` over torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from forebay.errors import InvalidOption
from forebay.training.collectives.tensor_collectives import TorchTensorCollectives
from forebay.world import World

T = TypeVar("T")
V = TypeVar("V")

MEET_S = 120.0
"""Minimum time in seconds that ranks wait for each other at the start, when one may still be importing."""
LEAST_BOX_BYTES = 1 << 12
"""Bytes of a value that rank 0 always has room for."""
BOX_BYTES = 1 << 15
"""Most room for a value of the next exchange. A larger one is sent a second time."""
_SIZE_BYTES = 8
_AGAIN = -1

TIMEOUT_WORDS = (
    "timed out waiting",
    "timeout caused pair closure",
    "collective operation timeout",
    "socket timeout",
    "wait timeout after",
    "timed out in blocking wait",
    # By NCCL's watchdog, which names the timeout in its log only. Drivers know a peer that died before they ask.
    "nccl communicator was aborted",
)
WATCHDOG_S = 480
"""PyTorch's own time limit for the watchdog of NCCL to show life."""


class TorchCollective:
    """`Collective` over the default process group.

    The group must exist: `process_group` makes it, or Ray Train.
    """

    def __init__(self, world: World, device: torch.device | str, *, timeout_s: float) -> None:
        assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.size), "World of another process group"
        self.world = world
        self.device = torch.device(device)
        if self.device.type == "cuda":
            _meet_on_gpus(self.device)
        # The group was made with the longer timeout that ranks need to meet. There is no public way. Checked on torch
        # 2.13.
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))  # noqa: SLF001
        self._room = LEAST_BOX_BYTES

    def tensor_collectives(self) -> TorchTensorCollectives:
        return TorchTensorCollectives()

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(values.copy())
        dist.all_reduce(total)
        return total.numpy()

    def combine(self, value: V, decide: Callable[[Sequence[V]], T]) -> T:
        # One message of each rank to rank 0, and a tree of messages back: gloo's `all_gather` is a ring, with as many
        # steps as ranks, and brings all values to all ranks.
        packed, room = cloudpickle.dumps(value), self._room
        while True:
            boxes = self._boxes(packed, room)
            most = max((_size_of(box) for box in boxes), default=0)
            is_again = most > room
            answer = b"" if is_again or not boxes else cloudpickle.dumps(decide(_unpacked(boxes)))
            size, room, answer = self._shared(_AGAIN if is_again else len(answer), _room_for(most), answer)
            if size != _AGAIN:
                self._room = min(room, BOX_BYTES)
                result: T = cloudpickle.loads(answer)
                return result

    def _boxes(self, packed: bytes, room: int) -> list[memoryview]:
        """Bring `room` bytes of every rank's pickle to rank 0.

        Each has its size before it. Empty on other ranks.
        """
        box = (len(packed).to_bytes(_SIZE_BYTES, "little") + packed[:room]).ljust(_SIZE_BYTES + room, b"\0")
        sent = torch.frombuffer(bytearray(box), dtype=torch.uint8)
        if not self.world.is_first:
            dist.gather(sent)
            return []
        boxes = torch.empty((self.world.size, len(box)), dtype=torch.uint8, device="cpu")
        dist.gather(sent, list(boxes.unbind()))
        return [row.data for row in boxes.numpy()]

    def _shared(self, size: int, room: int, answer: bytes) -> tuple[int, int, bytes]:
        """Return rank 0's arguments. One message holds a short answer."""
        numbers = b"".join(number.to_bytes(_SIZE_BYTES, "little", signed=True) for number in (size, room))
        head = torch.frombuffer(bytearray((numbers + answer).ljust(LEAST_BOX_BYTES, b"\0")), dtype=torch.uint8)
        head = head[:LEAST_BOX_BYTES].clone()
        dist.broadcast(head, src=0)
        found = head.numpy().tobytes()
        size, room = (int.from_bytes(found[at : at + _SIZE_BYTES], "little", signed=True) for at in (0, _SIZE_BYTES))
        here = found[2 * _SIZE_BYTES :][: max(size, 0)]
        if size <= len(here):
            return size, room, here
        rest = answer[len(here) :] if self.world.is_first else bytes(size - len(here))
        tail = torch.frombuffer(bytearray(rest), dtype=torch.uint8)
        dist.broadcast(tail, src=0)
        return size, room, here + tail.numpy().tobytes()

    def broadcast_object(self, value: T) -> T:
        box = [value if self.world.is_first else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]


def group_of(ranks: Sequence[int]) -> dist.ProcessGroup:
    """Make a process group of some ranks, with the time limit of the default one.

    All ranks make all groups, in the same order. They end with the default group.
    """
    group: dist.ProcessGroup = dist.new_group([*ranks])
    if dist.get_rank() in ranks:
        # Its own default is half an hour. No public way either, checked on torch 2.13.
        limit = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout  # type: ignore[union-attr] # noqa: SLF001
        dist.distributed_c10d._set_pg_timeout(limit, group)  # noqa: SLF001
    return group


def _size_of(box: memoryview) -> int:
    return int.from_bytes(box[:_SIZE_BYTES], "little")


def _unpacked(boxes: Sequence[memoryview]) -> list[Any]:
    return [cloudpickle.loads(box[_SIZE_BYTES:]) for box in boxes]


def _room_for(most: int) -> int:
    """Room of a box for values of `most` bytes."""
    return -(-(most + _SIZE_BYTES) // LEAST_BOX_BYTES) * LEAST_BOX_BYTES


def backend_of(device_type: str) -> str:
    """Backends of a process group, for `dist.init_process_group`.

    Also between GPUs, what ranks say to each other on the host goes over gloo. It waits for no kernel of the GPU, and a
    rank that does not answer raises there at its time limit. Over NCCL, the wait for it would be a wait for the GPU,
    which nothing can interrupt.
    """
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"


def set_nccl_defaults(timeout_s: float) -> None:
    """Let a hanging rank raise errors in others, not abort them.

    Called by a worker process before its process group is made. Variables that are set are kept. By default (torch
    2.13) the watchdog of NCCL ends its process at a timeout: a driver would take that for a lost worker, and replace
    it.
    """
    defaults = {
        # 2: give up the communicator, so that waiting kernels end and the next operation raises. 1 and 3 (the default)
        # end the process.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
        # Before it gives up, the watchdog waits for all ranks to write their records: up to a minute.
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        # Its monitor stays the last resort against a watchdog that hangs itself, but after every other limit.
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(max(WATCHDOG_S, 3 * timeout_s))),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _meet_on_gpus(device: torch.device) -> None:
    """Connect all ranks over NCCL, which does it at the first operation.

    Here, a rank that is missing is not taken for one that hangs in its train function. Raises `InvalidOption` for two
    ranks on one GPU.
    """
    try:
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        if "Duplicate GPU" not in str(error):
            raise
        raise InvalidOption(
            f"two workers were given one GPU, {device} of rank {dist.get_rank()}, and NCCL refuses a GPU that another "
            "rank has. Give each worker a GPU of its own (gpus=1, or fewer workers), or gpus=0 to train on the CPU.",
            device=str(device),
        ) from error


def is_timeout(error: BaseException) -> bool:
    """Whether a collective timed out on a living peer.

    torch has no class for these errors (checked on 2.13: errors of gloo, of NCCL's watchdog and of the store).
    """
    text = str(error).lower()
    return any(words in text for words in TIMEOUT_WORDS)


@contextmanager
def process_group(
    world: World, meeting: Path, *, device: torch.device | str = "cpu", timeout_s: float = 120.0
) -> Iterator[TorchCollective]:
    """Join a process group for the block.

    Ranks meet at the file `meeting`, which no group has used before.

    A collective that waits longer than `timeout_s` for a peer raises. So does the meeting, after `MEET_S` at least.
    With torch's default of half an hour, a job would hang that long after the loss of a worker.
    """
    limit = timedelta(seconds=max(timeout_s, MEET_S))
    # Not a URL of the file: torch does not decode one, and waits for a folder named `%20` in place of a space.
    store = dist.FileStore(os.fspath(meeting), world.size)  # type: ignore[attr-defined]
    store.set_timeout(limit)
    dist.init_process_group(
        backend_of(torch.device(device).type),
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=limit,
    )
    try:
        yield TorchCollective(world, device, timeout_s=timeout_s)
    finally:
        dist.destroy_process_group()
