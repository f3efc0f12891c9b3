"""A checkpoint as bytes.

Metadata, one serialized state per shard, and a checksum over each of them.

Independent of the meaning of the bytes, so it needs no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xxhash

VERSION = 3
METADATA = "checkpoint.json"
BLOCK_BYTES = 1 << 20
_CHECKSUM = "xxh3_128"
_BLOCKS = "xxh3_blocks"

Bytes: TypeAlias = bytes | memoryview
Metadata: TypeAlias = Mapping[str, Any]


class CorruptCheckpoint(Exception):
    """A checkpoint that cannot be trusted.

    The message is the reason.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """Number, size and checksum of a part.

    The checksum is `sum_of` its blocks. Another process may have written it, on `node`, if that is known.
    """

    number: int
    num_bytes: int
    checksum: str
    node: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedCheckpoint:
    """Metadata of a checkpoint, and its shards by number.

    Compared by identity.

    `metadata` names every shard with its size and checksum. `shards` holds all of them, or the requested ones. Each
    shard has its own checksum, so a process that needs one of them never reads the others. A shard is a serialized
    state, or a part: raw bytes of tensors, whose checksum is made of the checksums of its blocks.
    """

    metadata: Metadata
    shards: Mapping[int, Bytes] = field(repr=False)

    @classmethod
    def build(
        cls, metadata: Metadata, shards: Mapping[int, Bytes], parts: Sequence[PartFacts] = ()
    ) -> EncodedCheckpoint:
        """Encode a checkpoint with all its shards.

        `parts` lie elsewhere.

        `metadata` must survive JSON and name the `step`.
        """
        return cls.draft(metadata, shards, parts).sealed()

    @classmethod
    def draft(
        cls, metadata: Metadata, shards: Mapping[int, Bytes], parts: Sequence[PartFacts] = ()
    ) -> EncodedCheckpoint:
        """Like `build`, without checksums of shards.

        Only memory may hold it: a file that was cut short would not be noticed.
        """
        table = {str(number): {"bytes": len(content), _CHECKSUM: ""} for number, content in sorted(shards.items())}
        table |= {str(part.number): {"bytes": part.num_bytes, _BLOCKS: part.checksum} for part in parts}
        return cls(metadata={"version": VERSION, **metadata, "shards": table}, shards=shards)

    def sealed(self) -> EncodedCheckpoint:
        """Return a draft with its checksums, or another checkpoint unchanged.

        Takes as long as reading all shards. Releases the GIL.
        """
        if _CHECKSUM in self.metadata:
            return self
        whole = self.shards.keys() - part_facts(self.metadata).keys()
        sums = {str(number): {_CHECKSUM: _checksum(self.shards[number])} for number in whole}
        table = {number: {**facts, **sums.get(number, {})} for number, facts in self.metadata["shards"].items()}
        described = {**self.metadata, "shards": table}
        return EncodedCheckpoint(metadata={**described, _CHECKSUM: metadata_checksum(described)}, shards=self.shards)

    def with_parts(self, parts: Mapping[int, Bytes]) -> EncodedCheckpoint:
        """Return the checkpoint with the bytes of parts that it names."""
        return EncodedCheckpoint(metadata=self.metadata, shards={**self.shards, **parts})

    @property
    def step(self) -> int:
        return int(self.metadata["step"])

    @property
    def best(self) -> int | None:
        """Step of the best evaluation so far."""
        found = self.metadata.get("best")
        return None if found is None else int(found)

    @property
    def is_best(self) -> bool:
        """Whether it is the checkpoint of the best evaluation."""
        return self.best == self.step

    @property
    def num_bytes(self) -> int:
        """Size of the shards in `shards`."""
        return sum(map(len, self.shards.values()))

    @property
    def metadata_bytes(self) -> bytes:
        """Metadata in its written form."""
        return json.dumps(self.metadata, indent=1).encode()

    def verify(self) -> None:
        """Check that metadata and `shards` are what was encoded.

        Raises `CorruptCheckpoint` otherwise.
        """
        verify_metadata(self.metadata)
        table = _shard_table(self.metadata)
        for number, content in self.shards.items():
            facts = table.get(number, _ShardFacts())
            if len(content) != facts.num_bytes:
                raise CorruptCheckpoint(f"shard {number} has {len(content)} bytes, {METADATA} says {facts.num_bytes}")
            if (sum_of(block_sums(content)) if facts.is_part else _checksum(content)) != facts.checksum:
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
    """Verify the checksum of metadata. Raises `CorruptCheckpoint`.

    A cursor with one flipped digit would skip rows.
    """
    described = dict(metadata)
    if described.pop(_CHECKSUM, None) != metadata_checksum(described):
        raise CorruptCheckpoint(f"the checksum of {METADATA} is wrong")


def metadata_checksum(metadata: Metadata) -> str:
    """Checksum of metadata that does not contain one yet."""
    return _checksum(json.dumps(metadata, sort_keys=True).encode())


class ShardSums:
    """Size and checksum of a shard's bytes.

    They come piece by piece.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._hash = xxhash.xxh3_128()

    def add(self, piece: Bytes) -> None:
        """Add the next bytes."""
        self.num_bytes += len(piece)
        self._hash.update(piece)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def verify_shard(metadata: Metadata, number: int, sums: ShardSums) -> None:
    """Check the content of a whole shard.

    Raises `CorruptCheckpoint` unless it is what was encoded. The shard must not be a part.
    """
    facts = _shard_table(metadata)[number]
    if (sums.num_bytes, sums.checksum) != (facts.num_bytes, facts.checksum):
        raise CorruptCheckpoint(f"shard {number} is not what was written")


def shard_sizes(metadata: Metadata) -> dict[int, int]:
    """Number of bytes of every shard, in order.

    Raises `CorruptCheckpoint`.
    """
    return {number: facts.num_bytes for number, facts in sorted(_shard_table(metadata).items())}


def part_facts(metadata: Metadata) -> dict[int, PartFacts]:
    """Facts of the shards that are parts, by number.

    Raises `CorruptCheckpoint`.
    """
    return {
        number: PartFacts(number=number, num_bytes=facts.num_bytes, checksum=facts.checksum)
        for number, facts in sorted(_shard_table(metadata).items())
        if facts.is_part
    }


def block_sums(content: Bytes) -> list[int]:
    """Checksum (xxh3-64) of each MiB of `content`.

    The last block may be shorter.
    """
    view = memoryview(content)
    return [xxhash.xxh3_64_intdigest(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]


def sum_of(sums: Sequence[int]) -> str:
    """Checksum of a part, made of the checksums of its blocks."""
    return _checksum(b"".join(each.to_bytes(8, "little") for each in sums))


def whole_sizes(metadata: Metadata) -> dict[int, int]:
    """Number of bytes of every whole shard, in order.

    Leaves out parts. Raises `CorruptCheckpoint`.
    """
    return {number: facts.num_bytes for number, facts in sorted(_shard_table(metadata).items()) if not facts.is_part}


def split_shards(metadata: Metadata, content: memoryview) -> dict[int, memoryview]:
    """Views of all whole shards in one piece of memory.

    They lie there one after another, in order of their numbers. Leaves out parts.
    """
    shards, begin = {}, 0
    for number, num_bytes in whole_sizes(metadata).items():
        shards[number] = content[begin : begin + num_bytes]
        begin += num_bytes
    return shards


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardFacts:
    num_bytes: int = 0
    checksum: str = ""
    is_part: bool = False


def _shard_table(metadata: Metadata) -> dict[int, _ShardFacts]:
    """Size and checksum of every shard, by number.

    Raises `CorruptCheckpoint` if they are missing.
    """
    try:
        table = {int(number): _facts(entry) for number, entry in metadata["shards"].items()}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        table = {}
    if not table:
        raise CorruptCheckpoint(f"{METADATA} names no shards")
    return table


def _facts(entry: Mapping[str, Any]) -> _ShardFacts:
    is_part = _BLOCKS in entry
    checksum = str(entry[_BLOCKS if is_part else _CHECKSUM])
    return _ShardFacts(num_bytes=int(entry["bytes"]), checksum=checksum, is_part=is_part)


def _checksum(content: Bytes) -> str:
    return xxhash.xxh3_128(content).hexdigest()
