"""A map without its pages reads as before."""

from pathlib import Path

import pyarrow as pa

from forebay.runtime.memory.file_map import FileMap


def _resident(address: int) -> int:
    """KiB of the map that begins at `address` which this process has in its page table."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith((f"{address:x}-", f"{address:08x}-")):
            return next(int(each.split()[1]) for each in lines if each.startswith("Rss:"))
    raise AssertionError("no such map")


def test_dropped_pages_are_read_again(tmp_path: Path) -> None:
    content = bytes(range(256)) * (1 << 12)
    (tmp_path / "a").write_bytes(content)
    with pa.memory_map(str(tmp_path / "a")) as file:
        mapped = FileMap(file.read_buffer())
    assert mapped.memory.to_pybytes() == content
    before = _resident(mapped.memory.address)
    mapped.drop_pages()
    assert _resident(mapped.memory.address) == 0 < before
    assert mapped.memory.to_pybytes() == content
