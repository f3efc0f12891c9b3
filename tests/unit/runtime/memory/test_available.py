"""Memory of the machine, and what is left of it."""

from __future__ import annotations

from pathlib import Path

from forebay.runtime.memory.available import available_bytes, machine_bytes


def test_memory_left_is_the_least_of_machine_and_groups(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    assert available_bytes(tmp_path) == float("inf")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 200 kB\nMemAvailable:  100 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    assert available_bytes(tmp_path) == 102_400
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("50000\n")
    (group.parent / "memory.current").write_text("40000\n")
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert available_bytes(tmp_path) == 15_000


def test_this_machine_has_more_than_is_left() -> None:
    assert 0 < available_bytes() <= machine_bytes()
