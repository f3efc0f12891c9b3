"""Checkpoint as bytes: metadata, one serialized state per shard, and a checksum over each of them.

Independent of the meaning of the bytes, so it needs no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xxhash

VERSION = 3
METADATA = "checkpoint.json"
_CHECKSUM = "xxh3_128"

Bytes: TypeAlias = bytes | memoryview
Metadata: TypeAlias = Mapping[str, Any]


class CorruptCheckpoint(Exception):
    """Raised for a checkpoint that cannot be trusted. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedCheckpoint:
    """Metadata of a checkpoint, and serialized shards by number. Compared by identity.

    `metadata` names every shard with its size and checksum. `shards` holds all of them, or the requested ones. Each
    shard has its own checksum, so a process that needs one of them never reads the others.
    """

    metadata: Metadata
    shards: Mapping[int, Bytes] = field(repr=False)

    @classmethod
    def build(cls, metadata: Metadata, shards: Mapping[int, Bytes]) -> EncodedCheckpoint:
        """Encode a checkpoint with all its shards. `metadata` must survive JSON and name the `step`."""
        table = {
            str(number): {"bytes": len(content), _CHECKSUM: _checksum(content)}
            for number, content in sorted(shards.items())
        }
        described = {"version": VERSION, **metadata, "shards": table}
        return cls(metadata={**described, _CHECKSUM: metadata_checksum(described)}, shards=shards)

    @property
    def step(self) -> int:
        return int(self.metadata["step"])

    @property
    def num_bytes(self) -> int:
        """Size of the shards in `shards`."""
        return sum(map(len, self.shards.values()))

    @property
    def metadata_bytes(self) -> bytes:
        """Metadata in its written form."""
        return json.dumps(self.metadata, indent=1).encode()

    def verify(self) -> None:
        """Check that the metadata and `shards` are what was encoded. Raises `CorruptCheckpoint` otherwise."""
        verify_metadata(self.metadata)
        table = _shard_table(self.metadata)
        for number, content in self.shards.items():
            num_bytes, checksum = table.get(number, (0, ""))
            if len(content) != num_bytes:
                raise CorruptCheckpoint(f"shard {number} has {len(content)} bytes, {METADATA} says {num_bytes}")
            if _checksum(content) != checksum:
                raise CorruptCheckpoint(f"the checksum of shard {number} is wrong")


def parse_metadata(written: bytes) -> dict[str, Any]:
    """Parse written metadata without verifying its checksum. Raises `CorruptCheckpoint`."""
    try:
        metadata = json.loads(written)
    except (ValueError, RecursionError):
        raise CorruptCheckpoint(f"{METADATA} is truncated") from None
    if not isinstance(metadata, dict):
        raise CorruptCheckpoint(f"{METADATA} holds no metadata")
    return metadata


def verify_metadata(metadata: Metadata) -> None:
    """Verify the checksum: a cursor with one flipped digit would skip rows. Raises `CorruptCheckpoint`."""
    described = dict(metadata)
    if described.pop(_CHECKSUM, None) != metadata_checksum(described):
        raise CorruptCheckpoint(f"the checksum of {METADATA} is wrong")


def metadata_checksum(metadata: Metadata) -> str:
    """Checksum of metadata that does not contain one yet."""
    return _checksum(json.dumps(metadata, sort_keys=True).encode())


def shard_sizes(metadata: Metadata) -> dict[int, int]:
    """Bytes of every shard of a checkpoint, in order of their numbers. Raises `CorruptCheckpoint`."""
    return {number: num_bytes for number, (num_bytes, _) in sorted(_shard_table(metadata).items())}


def split_shards(metadata: Metadata, content: memoryview) -> dict[int, memoryview]:
    """Views of all shards in memory that holds them one after another, in order of their numbers."""
    shards, begin = {}, 0
    for number, num_bytes in shard_sizes(metadata).items():
        shards[number] = content[begin : begin + num_bytes]
        begin += num_bytes
    return shards


def _shard_table(metadata: Metadata) -> dict[int, tuple[int, str]]:
    """Size and checksum of every shard, by number. Raises `CorruptCheckpoint` if they are missing."""
    try:
        table = {int(number): (int(it["bytes"]), str(it[_CHECKSUM])) for number, it in metadata["shards"].items()}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        table = {}
    if not table:
        raise CorruptCheckpoint(f"{METADATA} names no shards")
    return table


def _checksum(content: Bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()
