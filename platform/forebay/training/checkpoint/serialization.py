"""Conversion of a shard's state to bytes and back."""

from __future__ import annotations

import io
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.serialization import skip_data
from torch.utils.serialization import config

from forebay.errors import BadJob
from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.threads import each_in_threads
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.encoded import Bytes

Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


def serialize(state: Mapping[str, Any], buffer: ReusableBuffer) -> None:
    """Append `state` to `buffer`, in the format of `torch.save`.

    The bytes of tensors are copied once, from where they are. A GPU copies in the order of its work, so that no later
    step changes them.
    """
    begin, storages = buffer.num_bytes, _storages(state)
    buffer.reset(begin)
    # CRCs take three quarters of the time, and each shard has a checksum. Only `unzip` needs them, not PyTorch.
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        if storages is not None:
            # Doubled as it fills, memory would be twice as large, and moved.
            buffer.reserve(begin + sum(each.nbytes() for each in storages) + _RECORD_BYTES * (len(storages) + 64))
            with skip_data():
                torch.save(dict(state), cast(IO[bytes], buffer))
            if [num_bytes for _, num_bytes in buffer.holes] == [each.nbytes() for each in storages]:
                fill(buffer, [_bytes_in(each) for each in storages])
                return
            buffer.reset(begin)
        torch.save(dict(state), cast(IO[bytes], buffer))


def num_bytes_of(state: Any) -> int:
    """Size of all tensors in a state, in bytes."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(map(num_bytes_of, state.values()))
    if isinstance(state, list | tuple) and not isinstance(state[0] if state else 0, int | float | str):
        return sum(map(num_bytes_of, state))
    return 0


def _storages(state: Mapping[str, Any]) -> list[torch.UntypedStorage] | None:
    """Storages of all tensors, in the order in which `torch.save` writes them.

    None if it may take another way, as for tensors of other layouts, or find tensors elsewhere, as in a set.
    """
    found: dict[int, torch.UntypedStorage] = {}
    seen = set[int]()

    def add(value: object) -> bool:
        if isinstance(value, Tensor):
            is_plain = type(value) in _TENSORS and value.layout is torch.strided and value.device.type in _DEVICES
            if not is_plain or vars(value) or value.is_quantized or value.is_nested:
                return False
            storage = value.untyped_storage()
            found.setdefault(storage._cdata, storage)  # noqa: SLF001 - a storage's identity, as torch.save takes it
        elif isinstance(value, _CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            if type(value) not in _PLAIN_CONTAINERS:
                return False
            return all(map(add, value.values() if isinstance(value, dict) else value))
        return isinstance(value, _CONTAINERS) or type(value) in _LEAVES

    return list(found.values()) if all(map(add, state.values())) else None


def fill(buffer: ReusableBuffer, sources: Sequence[Tensor]) -> None:
    """Copy the bytes of tensors (uint8, [bytes]) into the holes of `buffer`.

    A GPU copies in the order of its work.
    """
    devices = set[torch.device]()
    if gpus := [each.device.index for each in sources if each.device.type != "cpu"]:
        lock_pages(buffer, gpus[0])
    for (begin, num_bytes), source in zip(buffer.holes, sources, strict=True):
        if num_bytes and source.device.type != "cpu":
            on_host = torch.frombuffer(buffer.window(begin, num_bytes), dtype=torch.uint8)
            # On the stream of the trainer: its next step changes the tensors, and begins after the copy.
            on_host.copy_(source, non_blocking=True)
            devices.add(source.device)
    pieces = list[tuple[Array, Array]]()
    for (begin, num_bytes), source in zip(buffer.holes, sources, strict=True):
        if num_bytes and source.device.type == "cpu":
            target, values = np.frombuffer(buffer.window(begin, num_bytes), np.uint8), source.numpy()
            cuts = [slice(at, at + _PIECE_BYTES) for at in range(0, num_bytes, _PIECE_BYTES)]
            pieces += [(target[cut], values[cut]) for cut in cuts]
    num_threads = (
        min(_MOST_THREADS, torch.get_num_threads()) if sum(len(each) for each, _ in pieces) > _PIECE_BYTES else 1
    )
    if num_threads == 1:
        for piece in pieces:
            _copy(piece)
    else:
        list(each_in_threads(_copy, pieces, most=num_threads, name="forebay-copy"))
    for device in devices:
        torch.cuda.current_stream(device).synchronize()


def _copy(piece: tuple[Array, Array]) -> None:
    # By NumPy, which releases the GIL and copies twice as fast as torch: 9 GB/s instead of 4.
    np.copyto(*piece)


def gpu_of_thread() -> int | None:
    """GPU that the calling thread uses. None in a process that uses none."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def lock_pages(buffer: ReusableBuffer, gpu: int | None) -> None:
    """Lock the pages of a buffer for copies from `gpu`, once.

    Copies are then five times as fast, and locking takes longer than a copy. A new thread is on GPU 0: without `gpu`,
    each rank of a machine would begin to use that one, and take some hundred MB of its memory.
    """
    if gpu is None or buffer.unlock_pages is not None or not buffer.capacity:
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    memory = np.frombuffer(buffer.window(0, buffer.capacity), np.uint8)
    address = memory.ctypes.data
    with torch.cuda.device(gpu):
        if int(runtime.cudaHostRegister(address, memory.nbytes, 1)):  # a sandbox, or a limit: copies are slower
            runtime.cudaGetLastError()
            buffer.unlock_pages = lambda: None
            return
    # Also before the memory is unmapped: pages of a buffer that was given up would stay locked.
    buffer.unlock_pages = unlock = weakref.finalize(buffer, _unlock, address, gpu)
    unlock.atexit = False


def _unlock(address: int, gpu: int) -> None:
    with torch.cuda.device(gpu):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _bytes_in(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class UnreadableState(ValueError):
    """Content that this PyTorch cannot load as a state."""


def deserialize(content: Bytes) -> dict[str, Any]:
    """Return a state in main memory. Raises `UnreadableState`."""
    return _loaded(cast(IO[bytes], _MemoryFile(content)))


def deserialize_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a state whose tensors map the file.

    Raises `UnreadableState`.
    """
    return _loaded(os.fspath(path), mmap=True)


def _loaded(source: IO[bytes] | str, **options: bool) -> dict[str, Any]:
    # Unpicklers raise exceptions of any type.
    with replaced_errors(lambda error: UnreadableState(str(error))):
        found = torch.load(source, map_location="cpu", weights_only=True, **options)
        if not isinstance(found, dict):
            raise TypeError("it holds no state")
        return found


PLAIN = (torch.Tensor, torch.nn.Parameter, dict, list, tuple, str, int, float, bool, type(None))
NUM_NAMED = 3
_CONTAINERS = (Mapping, list, tuple)
_PLAIN_CONTAINERS = (dict, OrderedDict, list, tuple, torch.Size)
_LEAVES = (*PLAIN, complex, bytes, torch.dtype, torch.device)
_TENSORS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DEVICES = ("cpu", "cuda")
_PIECE_BYTES = 16 << 20
_MOST_THREADS = 4
"""Threads of one copy. One thread reaches 9 GB/s, memory several times that."""
_RECORD_BYTES = 512
"""Room for one tensor's name, shape and padding."""


class _MemoryFile(io.RawIOBase):
    """A file that is read from memory.

    `BytesIO` would copy all of it.
    """

    def __init__(self, content: Bytes) -> None:
        super().__init__()
        self._content, self._at = memoryview(content), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, len(self._content))[whence]
        return self._at

    def readinto(self, target: Any, /) -> int:
        found = self._content[self._at : self._at + len(target)]
        target[: len(found)] = found
        self._at += len(found)
        return len(found)


class LoadableTypes:
    """Types that are known to load again.

    A state with any other type is read back before it is written.

    Reading back takes time, so it is done only for the first save and for new types. A scheduler may hold None at
    first, and a NumPy number from the end of the first epoch on.
    """

    def __init__(self) -> None:
        self._seen: set[type] = set()

    def verify(self, state: Mapping[str, Any], written: Bytes) -> None:
        """Check that `written` loads again. Raises `BadJob`.

        `torch.load(weights_only=True)` must accept it. These are the bytes of `state`.
        """
        found: set[type] = set()
        _add_types(state, found)
        if found <= self._seen:
            return
        try:
            with skip_data():  # their bytes load, whatever they are
                deserialize(written)
        except UnreadableState as error:
            strange = [f"{where} is a {_name(value)}" for where, value in _walk(state, "") if type(value) not in PLAIN]
            raise BadJob(
                "the state of this run could be saved, but not be read back: "
                f"{'; '.join(strange[:NUM_NAMED]) or str(error).partition(chr(10))[0]}. A checkpoint holds tensors, "
                "numbers, strings, None, and tuples, lists and dicts of these. In the state_dict() of what setup() and "
                "track() were given, write float(x) for a NumPy number and torch.from_numpy(x) for an array.",
                found=strange,
            ) from error
        self._seen |= found


def _add_types(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], found: set[type]) -> None:
    """Add the types of all values within `value` to `found`."""
    if isinstance(value, Mapping):
        found.update(map(type, value))
        values = list(value.values())
    else:
        values = list(value)
    kinds = set(map(type, values))
    found |= kinds
    # Most containers hold no other container: a random generator of each rank is 625 numbers.
    if any(issubclass(kind, _CONTAINERS) for kind in kinds):
        for each in values:
            if isinstance(each, _CONTAINERS):
                _add_types(each, found)


def _walk(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Walk all values in `value`, each with its path.

    Such as `objects.scheduler.best`. Keys count as values.
    """
    yield where, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            path = f"{where}.{key}" if where else str(key)
            yield f"the key {path}", key
            yield from _walk(each, path)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _walk(each, f"{where}[{index}]")


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
