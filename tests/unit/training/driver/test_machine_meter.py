"""The meter reads the kernel's counters, of the container where it has limits."""

from __future__ import annotations

import math
from pathlib import Path

from forebay.training.driver.machine_meter import MachineMeter

HOST = {
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n",
    "proc/diskstats": "7 0 loop0 1 0 999 0 1 0 999 0\n8 0 sda 1 0 10 0 1 0 20 0\n8 1 sda1 1 0 10 0 1 0 20 0\n",
    "proc/net/dev": "Inter-|\n face |bytes\n lo: 5 0 0 0 0 0 0 0 5 0\n eth0: 100 0 0 0 0 0 0 0 300 0\n",
    "sys/block/sda/size": "",
    "sys/block/loop0/size": "",
}
LATER = HOST | {
    "proc/stat": "cpu  130 0 100 870 0 0 0 0 0 0\n",
    "proc/diskstats": "7 0 loop0 1 0 9999 0 1 0 9999 0\n8 0 sda 1 0 30 0 1 0 60 0\n8 1 sda1 1 0 30 0 1 0 60 0\n",
    "proc/net/dev": " lo: 900 0 0 0 0 0 0 0 900 0\n eth0: 400 0 0 0 0 0 0 0 900 0\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    write(tmp_path, HOST)
    meter = MachineMeter(with_gpus=False, root=str(tmp_path))
    write(tmp_path, LATER)
    use = meter.read()
    assert (round(use.cpu, 3), use.memory) == (0.3, 0.75) and math.isnan(use.gpu)
    assert round(use.disk_write_bytes_per_s / use.disk_read_bytes_per_s, 6) == 2, "whole disks, each once"
    assert round(use.sent_bytes_per_s / use.received_bytes_per_s, 6) == 2, "not of this machine to itself"


def test_a_container_has_shares_of_its_limits(tmp_path: Path) -> None:
    groups = {"cpu.max": "200000 100000", "cpu.stat": "usage_usec 0\n", "memory.max": "1000"}
    groups |= {"memory.current": "700", "memory.stat": "anon 5\ninactive_file 200\n"}
    write(tmp_path, HOST | {f"sys/fs/cgroup/{name}": text for name, text in groups.items()})
    meter = MachineMeter(with_gpus=False, root=str(tmp_path))
    assert meter.read().memory == 0.5
    (tmp_path / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 90000000\n")
    assert meter.read().cpu == 1.0


def test_nothing_known_is_nan(tmp_path: Path) -> None:
    use = MachineMeter(with_gpus=True, root=str(tmp_path)).read()
    assert math.isnan(use.cpu) and math.isnan(use.memory) and use.sent_bytes_per_s == 0
