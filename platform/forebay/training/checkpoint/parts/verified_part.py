"""Reader of spans of a part, verified block by block.

It does not read the other blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from forebay.training.checkpoint.encoded import BLOCK_BYTES, Bytes, CorruptCheckpoint, PartFacts, block_sums

ReadBytes = Callable[[int, int], Bytes]
"""Function of the first byte and the byte after the last one of a span. May return fewer bytes where the part ends."""


class VerifiedPart:
    """Reader of spans of one part.

    It reads whole blocks, verifies them, and keeps the last one for the next span.

    `copies` are tried in turn for each span, until one of them has what was written. They are taken as far as they are
    needed.
    """

    def __init__(self, part: PartFacts, sums: Sequence[int], copies: Iterable[ReadBytes]) -> None:
        self._number, self._num_bytes, self._sums = part.number, part.num_bytes, sums
        self._known, self._others = list[ReadBytes](), iter(copies)
        self._last: tuple[int, Bytes] = (-1, b"")
        self.read_bytes = 0
        """Bytes read so far."""

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end`, verified.

        Raises `CorruptCheckpoint` if they are not what was written.
        """
        if not 0 <= begin <= end <= self._num_bytes:
            raise CorruptCheckpoint(f"part {self._number} has no bytes {begin} to {end}")
        if begin == end:
            return b""
        first, stop = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        start = first * BLOCK_BYTES
        if self._last[0] == first:
            head = self._last[1]
            content = head if stop == first + 1 else b"".join((head, self._fetch(first + 1, stop)))
        else:
            content = self._fetch(first, stop)
        self._last = (stop - 1, memoryview(content)[(stop - 1 - first) * BLOCK_BYTES :])
        return memoryview(content)[begin - start : end - start]

    def _fetch(self, first: int, stop: int) -> Bytes:
        begin, end = first * BLOCK_BYTES, min(stop * BLOCK_BYTES, self._num_bytes)
        reason = "there is no copy"
        for read in self._copies():
            try:
                content = read(begin, end)
            except CorruptCheckpoint as error:
                reason = str(error)
                continue
            self.read_bytes += len(content)
            if len(content) == end - begin and block_sums(content) == list(self._sums[first:stop]):
                return content
            reason = f"it is not what was written between bytes {begin} and {end}"
        raise CorruptCheckpoint(f"part {self._number}: {reason}")

    def _copies(self) -> Iterator[ReadBytes]:
        yield from self._known
        for read in self._others:
            self._known.append(read)
            yield read
