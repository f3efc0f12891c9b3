"""File format of one block.

A JSON header and plain aligned arrays, memory-mapped, without pickle.

    magic            8 bytes, ends in the version of the format
    header length    8 bytes, little endian
    header           JSON: key, dataset, rows, arrays (name, dtype, shape)
    arrays           each at a multiple of 64 bytes, in the header's order, little endian
    checksum         16 bytes, XXH3-128 of everything before it

Why not Arrow IPC: docs/adr/0005-block-file-layout.md.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from forebay.data.transform.block import Block, BlockArray, fits_rows
from forebay.errors import ExitCode, ForebayError
from forebay.runtime.memory.file_map import FileMap

FILE_VERSION = 1
"""Part of every block key, so that files of another version are never opened."""

_MAGIC = b"FOREBAY" + bytes([FILE_VERSION])
_ALIGN = 64
_CHECKSUM_BYTES = 16
_MAX_HEADER_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_Read: TypeAlias = Callable[[int], bytes]
_NOT_PLAIN = (errno.ELOOP, errno.ENXIO)  # a link; a socket
_DTYPES = {
    np.dtype(name).newbyteorder("<").str: np.dtype(name).newbyteorder("<")
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
}


class BadBlock(ForebayError):
    """A torn or damaged block file.

    Or one that holds another block than its name says. Internal: the block is built again.
    """

    exit_status = ExitCode.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """Header of a block file."""

    key: str
    dataset: str
    rows: int
    arrays: tuple[_StoredArray, ...]


@dataclass(frozen=True, slots=True)
class _StoredArray:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return _DTYPES[self.dtype].itemsize * prod(self.shape)


def block_file_bytes(block: Block, key: str, dataset: str) -> int:
    """Exact size of the file that `write_block` makes."""
    header = _header_of(block, key, dataset)
    return _end_of_arrays(header, len(_encode(header))) + _CHECKSUM_BYTES


def write_block(file: BinaryIO, block: Block, key: str, dataset: str) -> None:
    """Write `block` at the start of the empty `file`.

    Equal blocks make equal bytes.
    """
    header = _header_of(block, key, dataset)
    checksum = xxhash.xxh3_128()
    written = 0
    for piece in _pieces(block, header):
        checksum.update(piece)
        file.write(piece)
        written += len(piece)
    assert written == _end_of_arrays(header, len(_encode(header)))
    file.write(checksum.digest())


def read_header(path: Path) -> BlockHeader:
    """Read the header of a block file.

    Does not read its arrays. Raises `BadBlock`.
    """
    with _open(path) as file:
        header, _ = _read_header(file.read, str(path), os.fstat(file.fileno()).st_size)
    return header


def map_block(path: Path, key: str, *, verify: bool, size: int | None = None) -> Block:
    """Map the block in `path`: read-only arrays, nothing copied.

    With `verify` it reads the whole file and compares the checksum. Raises `BadBlock` for a file that is torn, damaged,
    of another version or not of `key`, and `FileNotFoundError`.

    `size`: of a file that is known as a plain one, and need not be looked at.
    """
    if verify:
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header_of_key(file.read, path, size, key)
            _verify(file, size)
            memory = _memory(path, size)
            # While it is open, no other file has its number.
            if path.lstat().st_ino != os.fstat(file.fileno()).st_ino:
                raise BadBlock(f"{path} was replaced while it was verified.", path=str(path))
    else:
        # Not opened twice: each call of the system hands the GIL over, and this is in the gathering thread.
        if size is None:
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                raise _not_plain(path)
            size = found.st_size
        memory = _memory(path, size)
        header, start = _header_of_key(_reader(memory), path, memory.size, key)
    arrays = {}
    for stored, offset in _offsets(header, start):
        arrays[stored.name] = _array(memory, stored, offset)
    return Block(header.rows, arrays, owner=FileMap(memory) if memory.size > _READ_BYTES else memory)


def map_descriptor(descriptor: int) -> Block:
    """Map the block in an open file, which is closed.

    For a file in memory that a process of the same owner has written. Raises `BadBlock`.
    """
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        # By Arrow: Python's own map keeps a descriptor for each block that is held, and a process has some 1,000.
        memory = _memory(Path(f"/proc/self/fd/{descriptor}"), size)
        header, start = _read_header(_reader(memory), str(file.name), size)
    arrays = {stored.name: _array(memory, stored, offset) for stored, offset in _offsets(header, start)}
    return Block(header.rows, arrays, owner=memory)


def _open(path: Path) -> BinaryIO:
    """Open a regular file.

    Raises `BadBlock` for anything else, such as a link out of the cache.
    """

    def open_plain(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe would block. Regular files ignore the flag.
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(errno.ELOOP, "not a regular file", name)

    try:
        return open(path, "rb", opener=open_plain)
    except OSError as error:
        if error.errno not in _NOT_PLAIN:
            raise
        raise _not_plain(path) from error


def _not_plain(path: Path) -> BadBlock:
    return BadBlock(f"{path} is not a regular file.", path=str(path))


def _reader(memory: pa.Buffer) -> _Read:
    """Reader of consecutive bytes of `memory`."""
    left = memoryview(memory)

    def read(num_bytes: int) -> bytes:
        nonlocal left
        found, left = bytes(left[:num_bytes]), left[num_bytes:]
        return found

    return read


def _header_of_key(read: _Read, path: Path, size: int, key: str) -> tuple[BlockHeader, int]:
    header, start = _read_header(read, str(path), size)
    if header.key != key:
        raise BadBlock(f"{path} holds block {header.key[:80]!r}, not {key!r}.", path=str(path))
    return header, start


def _memory(path: Path, size: int) -> pa.Buffer:
    """Bytes of the file, read-only.

    Arrow's map keeps no file descriptor, while Python's own keeps one until it is freed. Small files are read instead:
    a map costs at least a page, and a process may have only about 65,000 maps.
    """
    with pa.OSFile(str(path)) if size <= _READ_BYTES else pa.memory_map(str(path)) as file:
        # One more byte than there should be, and no question for the size: each would hand the GIL over twice.
        memory = file.read_buffer(size + 1)
    # Block files are only renamed or removed, so another size means another file of this name.
    if memory.size != size:
        raise BadBlock(f"{path} changed while it was opened.", path=str(path))
    return memory


def _array(memory: pa.Buffer, stored: _StoredArray, offset: int) -> BlockArray:
    try:
        array = np.ndarray(stored.shape, _DTYPES[stored.dtype], buffer=memory, offset=offset)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadBlock(f"array {stored.name[:80]!r}: {error}") from error
    array.setflags(write=False)  # a small file was read into writable memory
    return array


def _header_of(block: Block, key: str, dataset: str) -> BlockHeader:
    layout = tuple(
        _StoredArray(name, array.dtype.newbyteorder("<").str, array.shape) for name, array in block.arrays.items()
    )
    return BlockHeader(key=key, dataset=dataset, rows=block.rows, arrays=layout)


def _encode(header: BlockHeader) -> bytes:
    arrays = [[stored.name, stored.dtype, list(stored.shape)] for stored in header.arrays]
    facts = {"key": header.key, "dataset": header.dataset, "rows": header.rows, "arrays": arrays}
    return json.dumps(facts, separators=(",", ":")).encode()


def _align(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _start_of_arrays(header_bytes: int) -> int:
    return _align(len(_MAGIC) + 8 + header_bytes)


def _offsets(header: BlockHeader, start: int) -> Iterator[tuple[_StoredArray, int]]:
    for stored in header.arrays:
        yield stored, start
        start = _align(start + stored.nbytes)


def _end_of_arrays(header: BlockHeader, header_bytes: int) -> int:
    end = _start_of_arrays(header_bytes)
    for stored in header.arrays:
        end = _align(end + stored.nbytes)
    return end


def _pieces(block: Block, header: BlockHeader) -> Iterator[memoryview]:
    encoded = _encode(header)
    front = _MAGIC + len(encoded).to_bytes(8, "little") + encoded
    yield memoryview(front.ljust(_start_of_arrays(len(encoded)), b"\0"))
    for stored, array in zip(header.arrays, block.arrays.values(), strict=True):
        plain = np.ascontiguousarray(array, _DTYPES[stored.dtype]).reshape(-1).view(np.uint8)
        # In chunks: bytes that the checksum has read are still in the CPU cache when they are written.
        for start in range(0, len(plain), _CHUNK_BYTES):
            yield plain[start : start + _CHUNK_BYTES].data
        yield memoryview(bytes(_align(stored.nbytes) - stored.nbytes))


def _read_header(read: _Read, name: str, size: int) -> tuple[BlockHeader, int]:
    """Read the header and the offset of the arrays.

    Guarantees that all arrays lie within the `size` bytes.
    """
    front = read(len(_MAGIC) + 8)
    if front[: len(_MAGIC)] != _MAGIC or len(front) < len(_MAGIC) + 8:
        raise BadBlock(f"{name} is not a block file of version {FILE_VERSION}.", path=name)
    length = int.from_bytes(front[len(_MAGIC) :], "little")
    if length > min(size, _MAX_HEADER_BYTES):
        raise BadBlock(f"{name} declares a header of {length} bytes.", path=name)
    try:
        header = _decode(json.loads(read(length)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadBlock(f"{name} has an invalid header: {error!r:.200}", path=name) from error
    expected = _end_of_arrays(header, length) + _CHECKSUM_BYTES
    if size != expected:
        raise BadBlock(f"{name} has {size} bytes, but its header declares {expected}.", path=name)
    return header, _start_of_arrays(length)


def _decode(facts: dict[str, object]) -> BlockHeader:
    key, dataset, rows, arrays = facts["key"], facts["dataset"], facts["rows"], facts["arrays"]
    if not (isinstance(key, str) and isinstance(dataset, str) and _is_length(rows) and isinstance(arrays, list)):
        raise ValueError("wrong types")
    assert isinstance(rows, int)
    layout = tuple(_StoredArray(name, dtype, tuple(shape)) for name, dtype, shape in arrays)
    for stored in layout:
        plain = isinstance(stored.name, str) and stored.dtype in _DTYPES and 1 <= len(stored.shape) <= 32
        if not (plain and all(map(_is_length, stored.shape)) and fits_rows(stored.name, stored.shape[0], rows)):
            raise ValueError(f"array {stored!r:.100}")
    if len({stored.name for stored in layout}) != len(layout):
        raise ValueError("two arrays of one name")
    return BlockHeader(key=key, dataset=dataset, rows=rows, arrays=layout)


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _verify(file: BinaryIO, size: int) -> None:
    # Reads instead of using the map: a bad sector is then an OSError here, not a SIGBUS that kills the trainer.
    file.seek(0)
    checksum = xxhash.xxh3_128()
    left = size - _CHECKSUM_BYTES
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    while left and (got := file.readinto(buffer[: min(left, _CHUNK_BYTES)])):  # type: ignore[attr-defined]
        checksum.update(buffer[:got])
        left -= got
    if left or checksum.digest() != file.read(_CHECKSUM_BYTES):
        raise BadBlock(f"{file.name} does not match its checksum.", path=str(file.name))
