"""Rows of one rank in one global batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.loader.device.in_flight import PROCESS_RING


class Batch(dict[str, Any]):
    """Rows of this rank in one global batch: array name -> tensor [rows, ...] (NumPy arrays on request).

    Attributes:
        position: Position of the global batch in its epoch, in rows.
        size: Rows of the global batch, over all ranks.
        rows: Rows of this rank's part.
        weight: `rows * world size / size`. A mean loss over the part, times this weight, averaged over the ranks, is
            the exact mean over the global batch. 0 for the one dummy row that a rank with an empty part gets.
        epoch: Number of its epoch, from 0.
        ends_epoch: True for the last batch of its epoch.
        source: Number of the data set of each row, int16 [rows], in the order of the mixture's names. None for the
            plan of one data set.
        names: Names of the data sets that `source` counts.
        copied: CUDA event of the batch's copy to a GPU, else None. The stream that was current when the loader handed
            the batch out waits for it. Another stream that uses the batch must wait for it too.
    """

    def __init__(
        self, arrays: Any = (), *, position: int = 0, size: int = 0, rows: int = 0, weight: float = 1.0
    ) -> None:
        # Defaults, because torch rebuilds mappings that it moves between devices as type(batch)(items).
        super().__init__(arrays)
        self.position, self.size, self.rows, self.weight = position, size, rows, weight
        self.epoch = 0
        self.ends_epoch = False
        self.source: Any = None
        self.names: tuple[str, ...] = ()
        self.copied: Any = None
        self._windows: Any = None

    @property
    def windows(self) -> Any:
        """Entity and first step of each window, int64 [rows, 2], to write predictions back. A padded window starts
        below 0. None for rows. Made at the first use, which few training loops have.
        """
        if callable(self._windows):
            self._windows = self._windows()
        return self._windows

    @windows.setter
    def windows(self, windows: Any) -> None:
        """Set the windows, or a function that makes them at the first use."""
        self._windows = windows

    def take_windows_of(self, other: Batch) -> None:
        """Have the windows of another batch, without making them."""
        self._windows = other._windows

    def __getstate__(self) -> dict[str, Any]:
        """Attributes for a pickle. The function that makes the windows holds their whole index, so it stays here, and
        so does an event.
        """
        return self.__dict__ | {"_windows": self.windows, "copied": None}

    def to(self, device: torch.device | str) -> Batch:
        """Copy of the batch on a device. Copies from page-locked memory overlap with work of the host.

        Memory of this batch is not reused before its copy has ended, also if it is dropped at once.
        """
        PROCESS_RING.wait_for_slot()
        moved = start_copy(self, device)
        if moved.copied is not None:
            PROCESS_RING.hold(moved.copied, self)
        return moved

    def take(self, rows: NDArray[np.int64], *, weight: float) -> Batch:
        """Copy of some rows of a batch of tensors, as a part of `weight`."""
        # Always a fresh contiguous copy: kernels also choose their algorithm by strides and alignment.
        part = self.with_arrays({name: values[_index(rows, values)] for name, values in self.items()})
        part.rows, part.weight = len(rows), weight
        if self.source is not None:
            part.source = self.source[_index(rows, self.source)]
        if self.windows is not None:
            part.windows = self.windows[_index(rows, self.windows)]
        return part

    def with_arrays(self, arrays: dict[str, Any]) -> Batch:
        """Batch of other arrays at the same place of the epoch."""
        batch = Batch(arrays, position=self.position, size=self.size, rows=self.rows, weight=self.weight)
        batch.epoch, batch.ends_epoch, batch.names = self.epoch, self.ends_epoch, self.names
        return batch

    def __repr__(self) -> str:
        shapes = {name: tuple(array.shape) for name, array in self.items()}
        return (
            f"Batch({shapes}, epoch={self.epoch}, position={self.position}, size={self.size}, weight={self.weight:g})"
        )


def start_copy(batch: Batch, device: torch.device | str) -> Batch:
    """Start the copy of a batch to a device, in the current stream.

    Where `copied` of the result is not None, the memory of `batch` must not change before that event has completed.
    """
    moved = batch.with_arrays(
        {name: torch.as_tensor(each).to(device, non_blocking=True) for name, each in batch.items()}
    )
    if batch.source is not None:
        moved.source = torch.as_tensor(batch.source).to(device, non_blocking=True)
    # Read by the host, which names the series: it stays there, unmade until then.
    moved.take_windows_of(batch)
    if torch.device(device).type == "cuda":
        moved.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        moved.copied.record(torch.cuda.current_stream(device))
    return moved


def _index(rows: NDArray[np.int64], values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rows).to(values.device)
