"""Rows of one rank in one global batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.data.loader.device.in_flight import PROCESS_RING
from forebay.data.manifest.file_rows import FileRows
from forebay.data.manifest.file_windows import FileWindows
from forebay.errors import InvalidOption


class Batch(dict[str, Any]):
    """Rows of this rank in one global batch.

    Array name -> tensor [rows, ...] (NumPy arrays on request).

    Attributes:
        position: Position of the global batch in its epoch, in rows.
        size: Rows of the global batch, over all ranks.
        num_rows: Rows of this rank's part.
        weight: `num_rows * world size / size`. A mean loss over the part, times this weight, averaged over the ranks,
            is the exact mean over the global batch. 0 for the one dummy row that a rank with an empty part gets.
        epoch: Number of its epoch, from 0.
        ends_epoch: True for the last batch of its epoch.
        source: Number of the dataset of each row, int16 [rows], in the order of the mixture's names. None for the
            plan of one dataset.
        names: Names of the datasets that `source` counts.
        lists: Names of the arrays without padding, as of `fb.Ragged(padded=False)`. Each holds the values of all rows,
            [total], and NAME_lengths how many are of each row.
        copied: CUDA event of the batch's copy to a GPU, else None. The stream that was current when the loader handed
            the batch out waits for it. Another stream that uses the batch must wait for it too.

    Small batches on a GPU may share memory with up to 7 others (32 MB): keep or save `batch["x"].clone()`. A pickle
    of a batch has its own rows alone.
    """

    def __init__(
        self, arrays: Any = (), *, position: int = 0, size: int = 0, num_rows: int = 0, weight: float = 1.0
    ) -> None:
        # Defaults, because torch rebuilds mappings that it moves between devices as type(batch)(items).
        super().__init__(arrays)
        self.position, self.size, self.num_rows, self.weight = position, size, num_rows, weight
        self.epoch = 0
        self.ends_epoch = False
        self.source: Any = None
        self.names: tuple[str, ...] = ()
        self.lists: tuple[str, ...] = ()
        self.copied: Any = None
        self.memory: Any = None  # what keeps the memory of a batch that only a copy reads
        self.joined: Any = None  # until the loader hands it out, if it was copied with others
        self._windows: Any = None
        self._on_host: dict[str, _HostArray] = {}
        self._copies: dict[str, torch.Tensor] = {}
        self._version = 0
        self._file_rows: FileRows | FileWindows | Callable[[], FileRows | FileWindows] | None = None

    def rows(self) -> FileRows | FileWindows:
        """Origin of each row, in the order of the arrays.

        File, row group and number in the row group.

        `rows()[0]` is a `FileRow`, as text `day=1/a.parquet:3:128`. With a filter or deleted rows, the number is still
        that in the file. Computed from the plan at the first call, which no training loop needs.

        Of windows, `rows()[0]` is a `FileWindow`: the spans of rows that the first window reads, as text
        `day=1/a.parquet:3:128..223`. The call reads the columns of entity and time from the files.

        Raises:
            InvalidOption: A batch that no `Loader` made.
            SourceChanged, ReadFailed, CorruptFile: Of windows.
        """
        if self._file_rows is None:
            raise InvalidOption(
                "rows() names rows of files, and this batch knows none. It works on batches of an fb.Loader, or of "
                "worker.loader(). Copy them with batch.to(device)."
            )
        if callable(self._file_rows):
            self._file_rows = self._file_rows()
        return self._file_rows

    def set_file_rows(self, make: Callable[[], FileRows | FileWindows]) -> None:
        """Set the function that finds the rows of this batch."""
        self._file_rows = make

    @property
    def windows(self) -> Any:
        """Entity and first step of each window, int64 [rows, 2].

        To write predictions back. A padded window starts below 0. None for rows. Made at the first use, which few
        training loops have.
        """
        if callable(self._windows):
            self._windows = self._windows()
        return self._windows

    @windows.setter
    def windows(self, windows: Any) -> None:
        """Set the windows.

        As arrays, or as a function that makes them at the first use.
        """
        self._windows = windows

    def take_origin_of(self, other: Batch) -> None:
        """Take the windows and rows of another batch.

        Without making them.
        """
        self._windows, self._file_rows = other._windows, other._file_rows

    def __getstate__(self) -> dict[str, Any]:
        """Attributes for a pickle.

        The functions that make windows and rows hold their whole index, so they are left out, and so is an event.
        """
        # To name the rows of windows, files are read: only a call of rows() does.
        is_known = self._file_rows is not None and not (self._windows is not None and callable(self._file_rows))
        return self.__dict__ | {
            "_windows": self.windows,
            "_file_rows": self.rows() if is_known else None,
            "copied": None,
            "memory": None,
            "_on_host": {},
            "_copies": {},
        }

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Batches that were copied together are views of one memory, and a pickle of a view has all of it (8 times).
        how = super().__reduce_ex__(max(int(protocol), 2))
        assert isinstance(how, tuple)
        return *how[:4], iter([(name, _owned(each)) for name, each in self.items()])

    def __copy__(self) -> Batch:
        batch = type(self).__new__(type(self))
        batch.update(self)
        # Rows and windows stay unmade: a DataLoader copies every batch.
        batch.__dict__.update(self.__dict__)
        batch.__dict__.update(_on_host=dict(self._on_host), _copies=dict(self._copies))
        return batch

    def on_host(self, name: str) -> NDArray[Any]:
        """Array `name` in main memory, not to be changed.

        Of a batch on a GPU, this waits for the copy of the batch alone, and for no kernel that computes: so a training
        loop can ask for counts without draining the GPU.
        """
        values, known = self[name], self._on_host.get(name)
        if known is None or not known.is_of(values):
            is_copy = self._copies.get(name) is values and _version(values) == self._version
            read = partial(_copied_numpy, values, self.copied) if is_copy else partial(_numpy, values)
            known = self._on_host[name] = _HostArray(values, read)
        return known.read()

    def to(self, device: torch.device | str) -> Batch:
        """Copy of the batch on a device.

        Copies from page-locked memory overlap with work of the host. `fb.Loader(..., device="cuda")` gathers into it.

        Memory of this batch is not reused before its copy has ended, also if it is dropped at once.
        """
        PROCESS_RING.wait_for_slot()
        moved = start_copy(self, device)
        if moved.copied is not None:
            PROCESS_RING.hold(moved.copied, self)
        return moved

    def take(self, rows: NDArray[np.int64], *, weight: float) -> Batch:
        """Copy of some rows of a batch of tensors.

        A part of `weight`.
        """
        # Always a fresh contiguous copy: kernels also choose their algorithm by strides and alignment.
        part = self.with_arrays({name: self._taken_array(name, rows) for name in self})
        part.num_rows, part.weight = len(rows), weight
        read = {name: partial(self._host_rows, name, rows) for name in part if name not in self.lists}
        part._on_host = {name: _HostArray(part[name], each) for name, each in read.items()}  # noqa: SLF001 - of this class
        if self._file_rows is not None:
            part.set_file_rows(partial(_taken, self._file_rows, rows))
        if self.source is not None:
            part.source = self.source[_index(rows, self.source)]
        if self.windows is not None:
            part.windows = self.windows[_index(rows, self.windows)]
        return part

    def show(self, whole: Batch, rows: slice) -> None:
        """Take `rows` of the tensors of a larger batch, without a copy."""
        # By `data`, a change in place counts for this batch alone: torch counts changes of views together.
        self.update({name: values[rows].data for name, values in whole.items()})
        self.copied = whole.copied
        if self.copied is not None:
            self._copies, self._version = dict(self), _version(next(iter(self.values()), None))

    def with_arrays(self, arrays: dict[str, Any]) -> Batch:
        """Batch of other arrays, at the same position."""
        batch = Batch(arrays, position=self.position, size=self.size, num_rows=self.num_rows, weight=self.weight)
        batch.epoch, batch.ends_epoch, batch.names, batch.lists = self.epoch, self.ends_epoch, self.names, self.lists
        return batch

    def _host_rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self.on_host(name)[rows]
        return found

    def _taken_array(self, name: str, rows: NDArray[np.int64]) -> torch.Tensor:
        values: torch.Tensor = self[name]
        if name not in self.lists:
            # An index would be copied to the device first, which waits for it.
            return values[rows[0] : rows[-1] + 1].clone() if _is_run(rows) else values[_index(rows, values)]
        lengths = self[f"{name}_lengths"].long()
        starts, index = lengths.cumsum(0) - lengths, _index(rows, values)
        kept = lengths[index]
        shifts = starts[index] - (kept.cumsum(0) - kept)
        shift = torch.repeat_interleave(shifts, kept)
        return values[shift + torch.arange(len(shift), device=values.device)]

    def __repr__(self) -> str:
        shapes = {name: tuple(array.shape) for name, array in self.items()}
        return (
            f"Batch({shapes}, epoch={self.epoch}, position={self.position}, size={self.size}, weight={self.weight:g})"
        )


def start_copy(batch: Batch, device: torch.device | str) -> Batch:
    """Start the copy of a batch to a device.

    In the current stream.

    Where `copied` of the result is not None, the memory of `batch` must not change before that event has completed.
    """
    return _finished(
        batch, {name: _tensor_of(each).to(device, non_blocking=True) for name, each in batch.items()}, device
    )


def start_plain_copy(batch: Batch, device: torch.device) -> Batch:
    """Start the copy of a loader's own host batch.

    Same as `start_copy`, for new contiguous tensors without gradients. `Tensor.to` hands the GIL over three times for
    each array, two of them to keep the Python object of its source. This does so once, and once for all.
    """
    sources = {name: _tensor_of(each) for name, each in batch.items()}
    copies = {name: torch.empty(each.shape, dtype=each.dtype, device=device) for name, each in sources.items()}
    torch._foreach_copy_([*copies.values()], [*sources.values()], non_blocking=True)
    return _finished(batch, copies, device)


def _finished(batch: Batch, arrays: dict[str, torch.Tensor], device: torch.device | str) -> Batch:
    """Batch of started copies, with their event."""
    moved = batch.with_arrays(arrays)
    if batch.source is not None:
        moved.source = _tensor_of(batch.source).to(device, non_blocking=True)
    # Read by the host, which names the series: it stays there, unmade until then.
    moved.take_origin_of(batch)
    if torch.device(device).type == "cuda":
        moved.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        moved.copied.record(torch.cuda.current_stream(device))
        # All arrays have been written equally often.
        moved._copies, moved._version = arrays, _version(next(iter(arrays.values()), None))  # noqa: SLF001 - a new batch
    return moved


def _tensor_of(array: Any) -> torch.Tensor:
    """Return a tensor of `array`."""
    # `as_tensor` would hand the GIL over once more for each array.
    return array if isinstance(array, torch.Tensor) else torch.as_tensor(array)


def _owned(values: Any) -> Any:
    """Array without the memory of others."""
    if type(values) is not torch.Tensor or values.layout is not torch.strided or values.is_nested:
        return values
    return values.clone() if values.untyped_storage().nbytes() > values.nbytes else values


def _taken(
    file_rows: FileRows | FileWindows | Callable[[], FileRows | FileWindows], numbers: NDArray[np.int64]
) -> FileRows | FileWindows:
    return (file_rows() if callable(file_rows) else file_rows).take(numbers)


def _index(rows: NDArray[np.int64], values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rows).to(values.device, non_blocking=True)


def _is_run(rows: NDArray[np.int64]) -> bool:
    return bool(len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))))


class _HostArray:
    """Values of an array in main memory, read once."""

    def __init__(self, values: Any, read: Callable[[], NDArray[Any]]) -> None:
        self._values, self._version, self._read = values, _version(values), read
        self._found: NDArray[Any] | None = None

    def is_of(self, values: Any) -> bool:
        """Whether `values` are those that it was made of, unchanged."""
        return values is self._values and _version(values) == self._version

    def read(self) -> NDArray[Any]:
        if self._found is None:
            self._found = self._read()
        return self._found


def _version(values: Any) -> int:
    return values._version if isinstance(values, torch.Tensor) else 0  # noqa: SLF001 - torch has no public count of writes


def _numpy(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _copied_numpy(values: torch.Tensor, copied: Any) -> NDArray[Any]:
    stream = _host_stream(values.device)
    stream.wait_event(copied)
    with torch.cuda.stream(stream):
        return _numpy(values)


@cache
def _host_stream(device: torch.device) -> Any:
    """Stream that reads batches, beside the one that computes."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
