"""Memory into which serialized states are written, checkpoint after checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from forebay.training.checkpoint.encoded import Bytes


class ReusableBuffer:
    """A file in memory that is written repeatedly.

    Its pages stay: fresh ones cost more than the copy into them.

    A subclass decides where the memory is. `holes` are the spans that were left out with `seek`, as begin and size.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._at = 0
        self.holes: list[tuple[int, int]] = []
        self.unlock_pages: Callable[[], object] | None = None
        """Set while the memory is page-locked. Called before the memory moves."""

    @property
    def capacity(self) -> int:
        """Bytes of memory."""
        return len(self._memory)

    @property
    def num_bytes(self) -> int:
        """Bytes written since `reset`."""
        return self._at

    def write(self, data: Bytes) -> int:
        """Append `data`, as `torch.save` does.

        Returns its size in bytes.
        """
        end = self._at + len(data)
        self._make_room(end)
        self._memory[self._at : end] = data
        self._at = end
        return len(data)

    def seek(self, num_bytes: int, whence: int) -> int:
        """Skip `num_bytes` bytes, as `torch.save` does for a tensor's data.

        They are written later, into their `window`.
        """
        assert whence == 1, "torch.save moves on from where it is"
        self._make_room(self._at + num_bytes)
        self.holes.append((self._at, num_bytes))
        self._at += num_bytes
        return self._at

    def window(self, begin: int, num_bytes: int) -> memoryview:
        """Writable memory of bytes written or left out.

        Valid until the next write.
        """
        return self._memory[begin : begin + num_bytes]

    def reserve(self, num_bytes: int) -> None:
        """Reserve `num_bytes` bytes in all.

        They are then written without moving the memory.
        """
        if num_bytes > len(self._memory):
            if self.unlock_pages is not None:
                self.unlock_pages()
                self.unlock_pages = None
            self._memory = self.grow(num_bytes)

    def flush(self) -> None:
        """Do nothing: no data is buffered. `torch.save` calls it."""

    def reset(self, num_bytes: int = 0) -> None:
        """Continue after the first `num_bytes` bytes, and overwrite the rest."""
        self._at = num_bytes
        self.holes.clear()

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

    def _make_room(self, end: int) -> None:
        if end > len(self._memory):
            self.reserve(max(end, 2 * len(self._memory)))
