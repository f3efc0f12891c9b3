"""Memory into which serialized states are written, checkpoint after checkpoint."""

from __future__ import annotations

from forebay.training.checkpoint.encoded import Bytes


class ReusableBuffer:
    """A file in memory that is written repeatedly.

    Its pages stay: fresh ones cost more than the copy into them.

    A subclass decides where the memory is.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._at = 0

    @property
    def num_bytes(self) -> int:
        """Bytes written since `reset`."""
        return self._at

    def write(self, data: Bytes) -> int:
        """Append `data`, as `torch.save` does.

        Returns its size in bytes.
        """
        end = self._at + len(data)
        if end > len(self._memory):
            self._memory = self.grow(max(end, 2 * len(self._memory)))
        self._memory[self._at : end] = data
        self._at = end
        return len(data)

    def reserve(self, num_bytes: int) -> None:
        """Reserve `num_bytes` bytes in all.

        They are then written without moving the memory.
        """
        if num_bytes > len(self._memory):
            self._memory = self.grow(num_bytes)

    def flush(self) -> None:
        """Do nothing: no data is buffered. `torch.save` calls it."""

    def reset(self) -> None:
        """Start at the beginning again and overwrite earlier data."""
        self._at = 0

    def written(self) -> memoryview:
        """All data since `reset`, without a copy.

        Valid until the next write.
        """
        return self._memory[: self._at].toreadonly()

    def grow(self, num_bytes: int) -> memoryview:
        """Return writable memory of at least `num_bytes`.

        It begins with the data written so far.
        """
        memory = memoryview(bytearray(num_bytes))
        memory[: self._at] = self._memory[: self._at]
        return memory
