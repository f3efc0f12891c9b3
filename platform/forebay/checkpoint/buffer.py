"""Memory to write a state into, again and again."""

from __future__ import annotations

from forebay.checkpoint.encoded import Bytes


class ReusableBuffer:
    """A file in memory that is written again and again. Its pages stay: fresh ones cost more than the copy into them.

    A subclass says where the memory is.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._at = 0

    def write(self, data: Bytes) -> int:
        """Append; what `torch.save` calls."""
        end = self._at + len(data)
        if end > len(self._memory):
            self._memory = self.grown(max(end, 2 * len(self._memory)))
        self._memory[self._at : end] = data
        self._at = end
        return len(data)

    def flush(self) -> None:
        """Nothing waits anywhere: `torch.save` asks."""

    def rewind(self) -> None:
        """Begin anew; what was written is given up."""
        self._at = 0

    def written(self) -> memoryview:
        """All that was written since `rewind`, without a copy: good until the next one."""
        return self._memory[: self._at].toreadonly()

    def grown(self, num_bytes: int) -> memoryview:
        """At least `num_bytes` of writable memory that begins with what was written so far."""
        memory = memoryview(bytearray(num_bytes))
        memory[: self._at] = self._memory[: self._at]
        return memory
