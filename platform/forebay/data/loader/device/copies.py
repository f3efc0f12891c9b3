"""Copies of batches to a device.

In a stream of their own where the device has streams.
"""

from __future__ import annotations

import threading
from typing import Protocol

import torch

from forebay.data.loader.batch import Batch, start_plain_copy
from forebay.errors import InvalidOption


class DeviceCopies(Protocol):
    """Seam between the feed and a device.

    Laws: `start` does not wait for the device. One thread calls it, and another one `hand_out`. The host batch may
    change only after the event that `start` sets as `copied` has completed. What the consumer enqueues after `hand_out`
    sees the whole batch.
    """

    def start(self, host: Batch) -> Batch:
        """Start a copy.

        The batch on the device is complete when its `copied` has completed, at once if that is None.
        """
        ...

    def hand_out(self, batch: Batch) -> Batch:
        """Make the consumer's later work wait for the copy.

        Does not wait here.
        """
        ...


class CudaCopies:
    """Copies in a side stream of a GPU.

    The consumer is the stream that is current in the thread of `hand_out`. The side stream stays current in the thread
    of `start`, which is the loader's: to set and reset it for each batch takes 10 us of the GIL.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._thread: int | None = None

    def start(self, host: Batch) -> Batch:
        thread = threading.get_ident()
        if thread != self._thread:
            torch.cuda.set_stream(self._stream)
            self._thread = thread
        return start_plain_copy(host, self._device)

    def hand_out(self, batch: Batch) -> Batch:
        consumer = torch.cuda.current_stream(self._device)
        assert batch.copied is not None, "every copy to a GPU has an event"
        consumer.wait_event(batch.copied)
        for tensor in (*batch.values(), *(() if batch.source is None else (batch.source,))):
            # Allocated in the side stream: the allocator must not reuse it before the consumer's work has ended.
            tensor.record_stream(consumer)
        return batch


class PlainCopies:
    """Synchronous copies, for devices without streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self, host: Batch) -> Batch:
        return start_plain_copy(host, self._device)

    def hand_out(self, batch: Batch) -> Batch:
        return batch


def known_device(device: torch.device | str, *, as_numpy: bool) -> torch.device | None:
    """Device of the batches.

    None where they stay in main memory.

    Raises:
        InvalidOption: Not a device of this machine, or NumPy arrays on one.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidOption(f'device={device!r} is not a device. Give "cuda", "cuda:1" or None.') from error
    if found.type == "cpu":
        return None
    if as_numpy:
        raise InvalidOption(f"as_numpy=True and device={str(found)!r}: NumPy arrays are in main memory. Leave one out.")
    if found.type == "cuda":
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:
            raise InvalidOption(
                f"device={str(found)!r}: PyTorch finds {count} GPUs here. Give one of them, or leave device out."
            )
        # An index of its own: a thread's current device may change later.
        return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())
    return found


def open_copies(device: torch.device) -> DeviceCopies:
    """Copies to a device."""
    return CudaCopies(device) if device.type == "cuda" else PlainCopies(device)
