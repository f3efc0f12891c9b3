"""State of a checkpoint, read one tensor at a time.

Does not need the memory of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.parts.part import read_region
from forebay.training.checkpoint.parts.table import TABLE, PartsTable, filled, scalar_tensor, tensor_name
from forebay.training.checkpoint.parts.verified_part import VerifiedPart
from forebay.training.checkpoint.serialization import UnreadableState, deserialize_file

_HEAD = 0


class StoredState:
    """State of shard 0.

    Its tensors are views of a mapped file, or named tensors in parts, until `tensor` reads them.

    It can be used within the block of `open_state`.
    """

    def __init__(self, head: Mapping[str, Any], table: PartsTable | None, parts: Mapping[int, VerifiedPart]) -> None:
        self.head = head
        self._table, self._parts = table, parts

    def facts(self, leaf: object) -> tuple[tuple[int, ...], torch.dtype] | None:
        """Return shape and dtype of a tensor, without reading it.

        The tensor is of the head. None for any other value.
        """
        whole = leaf if isinstance(leaf, Tensor) else scalar_tensor(leaf)
        if whole is not None:
            return tuple(whole.shape), whole.dtype
        name = tensor_name(leaf)
        if name is None or self._table is None:
            return None
        stored = self._table.tensors[name]
        dtype: torch.dtype = getattr(torch, stored.dtype)
        return stored.shape, dtype

    def tensor(self, leaf: object) -> Tensor:
        """Return a tensor of the head, in main memory.

        It is whole. Raises `CorruptCheckpoint`.
        """
        found: Tensor = filled({"it": leaf}, self._read)["it"]
        return found

    def rows(self, leaf: object, begin: int, end: int) -> Tensor:
        """Return rows `begin` to `end` of a tensor.

        The tensor is of the head. They are in main memory. Raises `CorruptCheckpoint`.
        """
        name = tensor_name(leaf)
        if name is None or self._table is None:
            return self.tensor(leaf)[begin:end]
        stored = self._table.tensors[name]
        rest = stored.shape[1:]
        return read_region(stored, ((begin, *(0 for _ in rest)), (end - begin, *rest)), self._parts)

    def _read(self, name: str) -> Tensor:
        assert self._table is not None, "a named tensor lies in parts"
        stored = self._table.tensors[name]
        return read_region(stored, ((0,) * len(stored.shape), stored.shape), self._parts)


@contextmanager
def open_state(files: CheckpointFiles, step: int) -> Iterator[StoredState]:
    """Open the complete checkpoint of `step`.

    The checksum of shard 0 is verified first. Parts are verified when they are read.

    Raises `CorruptCheckpoint`, and as `CheckpointFiles.read`.
    """
    metadata = files.read(step, shards=()).metadata
    with files.verified_shard(step, _HEAD, metadata) as path:
        try:
            head = deserialize_file(path)
        except UnreadableState as error:
            raise CorruptCheckpoint(f"shard {_HEAD} cannot be read: {error}") from error
        table = PartsTable.in_state(head)
        parts = {} if table is None else table.open(lambda part: files.part_readers(step, part.number))
        yield StoredState({name: value for name, value in head.items() if name != TABLE}, table, parts)
