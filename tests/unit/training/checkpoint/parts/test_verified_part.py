"""Copies of a part are looked up as far as they are needed."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.training.checkpoint.encoded import Bytes, CorruptCheckpoint, PartFacts, block_sums, sum_of
from forebay.training.checkpoint.parts.verified_part import ReadBytes, VerifiedPart

CONTENT = bytes(range(200))


def missing(begin: int, end: int) -> Bytes:
    raise CorruptCheckpoint("it is not in memory")


def whole(begin: int, end: int) -> Bytes:
    return CONTENT[begin:end]


def test_copies_are_looked_up_in_turn_and_once() -> None:
    looked = list[str]()

    def copies() -> Iterator[ReadBytes]:
        for name, read in (("lost", missing), ("good", whole), ("other", whole)):
            looked.append(name)
            yield read

    sums = block_sums(CONTENT)
    part = VerifiedPart(PartFacts(number=1, num_bytes=200, checksum=sum_of(sums)), sums, copies())
    assert looked == []
    assert [bytes(part.read(begin, begin + 10)) for begin in (0, 100)] == [CONTENT[:10], CONTENT[100:110]]
    part._last = (-1, b"")
    assert bytes(part.read(0, 200)) == CONTENT
    assert looked == ["lost", "good"]
