"""Limits of data workers: shares of the machine, and what this process may use."""

from __future__ import annotations

import errno
import math
import os
import pickle
import sys
import threading
from pathlib import Path

import pytest

from forebay.data.cache.builders import data_workers
from forebay.data.cache.builders.data_workers import (
    NICENESS,
    DataWorkers,
    NumReads,
    lower_thread_priority,
    usable_cores,
)
from forebay.data.cache.builders.reads_in_flight import ReadBounds
from forebay.errors import InvalidOption


@pytest.mark.parametrize(
    ("share", "usable", "expected"),
    [
        (0.4, 1, 1),
        (0.4, 2, 1),
        (0.4, 4, 2),
        (0.4, 8, 3),
        (0.4, 16, 6),
        (0.4, 96, 38),
        (1, 8, 8),
        (0.01, 8, 1),
        (1, 0.5, 1),
    ],
)
def test_share_of_the_cores_and_at_least_one(share: float, usable: float, expected: int) -> None:
    assert DataWorkers(core_share=share).num_cores(usable) == expected


def test_processes_side_by_side_share_what_there_is() -> None:
    one_of_four = DataWorkers(core_share=0.5, num_reads=10).divided_by(4)
    assert (one_of_four.num_cores(32), one_of_four.num_reads) == (4, 3)
    assert DataWorkers(num_reads=1).divided_by(8).num_reads == 1
    auto = DataWorkers(num_reads="auto").divided_by(4)
    assert (auto.num_reads, auto.read_bounds) == ("auto", ReadBounds().divided_by(4))


@pytest.mark.parametrize(("num_reads", "twice"), [(3, 6), ("auto", "auto")])
def test_twice_the_workers_have_twice_what_does_not_choose_itself(num_reads: NumReads, twice: NumReads) -> None:
    workers = DataWorkers(core_share=0.3, num_reads=num_reads, auto_reads=ReadBounds(most=16))
    assert workers.times(2) == DataWorkers(core_share=0.6, num_reads=twice, auto_reads=ReadBounds(most=16))
    assert workers.times(4).core_share == 1.0


@pytest.mark.parametrize(("cores", "gpus", "expected"), [(2, 0, 1), (16, 0, 6), (16, 1, 14), (96, 8, 80), (4, 2, 2)])
def test_data_workers_take_what_training_leaves(
    cores: float, gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_workers, "num_gpus", lambda: gpus)
    assert DataWorkers().num_cores(cores) == expected
    assert DataWorkers().divided_by(2).num_cores(cores) == max(1, round(data_workers.free_cores(cores, gpus) / 2))
    assert DataWorkers().times(8).num_cores(cores) == cores


def test_gpus_are_counted_by_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvme0", "null"):
        (tmp_path / name).touch()
    assert (data_workers.num_gpus(str(tmp_path)), data_workers.num_gpus(str(tmp_path / "none"))) == (3, 0)

    def no_descriptor_left(_: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", no_descriptor_left)
    assert data_workers.num_gpus(str(tmp_path)) == 0, "fewer threads, not the end of a loader"


@pytest.mark.parametrize(("share", "start", "least"), [(0.01, 2, 2), (1.0, 64, 4)])
def test_local_files_begin_with_a_read_for_each_core(
    share: float, start: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_workers, "usable_cores", lambda: 64.0)
    bounds = DataWorkers(core_share=share).for_local_files().read_bounds
    assert (bounds.start, bounds.least, bounds.most) == (start, least, ReadBounds().most)
    assert DataWorkers(num_reads=6).for_local_files().read_bounds.start == 6, "a given number counts"


@pytest.mark.parametrize("core_share", [0, -0.1, 1.1, math.nan, "0.4", None, True])
def test_a_share_is_above_nothing_and_at_most_everything(core_share: float) -> None:
    with pytest.raises(InvalidOption, match="core_share="):
        DataWorkers(core_share=core_share)


@pytest.mark.parametrize("num_reads", [0, 1.5, True])
def test_at_least_one_thread_reads(num_reads: int) -> None:
    with pytest.raises(InvalidOption, match="num_reads="):
        DataWorkers(num_reads=num_reads)


def test_data_workers_travel() -> None:
    workers = DataWorkers(core_share=0.25, num_reads=3)
    assert pickle.loads(pickle.dumps(workers)) == workers


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness belongs to the process")
def test_only_the_thread_itself_becomes_nicer_and_never_less_nice() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def look() -> None:
        lower_thread_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        lower_thread_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert seen == [max(NICENESS, before), 19]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_system_that_forbids_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbid)
    lower_thread_priority()


def test_cores_are_those_it_may_run_on(tmp_path: Path) -> None:
    assert usable_cores(str(tmp_path)) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/cpu.max": "50000 100000", "proc/self/cgroup": "0::/"}, 0.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000", "proc/self/cgroup": "0::/"}, None),
        ({"sys/fs/cgroup/a/cpu.max": "25000 100000", "proc/self/cgroup": "0::/a/b"}, 0.25),
        ({"sys/fs/cgroup/other/cpu.max": "25000 100000", "proc/self/cgroup": "0::/a/b"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "75000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.75),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "of no sense", "proc/self/cgroup": "0::/"}, None),
        ({"sys/fs/cgroup/cpu.max": "100000 0", "proc/self/cgroup": "0::/"}, None),
    ],
)
def test_quota_of_a_container_counts(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    assert usable_cores(str(tmp_path)) == (len(os.sched_getaffinity(0)) if expected is None else expected)
