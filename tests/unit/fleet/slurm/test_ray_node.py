"""Ray on a node of a SLURM job: its port, and the reason why it does not start."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from forebay.fleet.slurm import ray_node


def test_a_port_is_free_and_no_connection_of_the_system_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "_PORTS", 3)
    with closing(socket.socket()) as taken:
        taken.bind(("", ray_node._FIRST_PORT + 1))
        assert {ray_node._free_port() for _ in range(50)} == {ray_node._FIRST_PORT, ray_node._FIRST_PORT + 2}
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert first >= ray_node._FIRST_PORT + 12_000


def test_folders_of_jobs_that_ended_long_ago_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "LONGEST_ROOT", 4096)
    place = {"TMPDIR": str(tmp_path)}
    names = ("7-0", "7-1", "8-0", "9-0", "10-0")
    folders = {name: ray_node.temporary_folder(name, place).parent for name in names}
    assert not folders["7-0"].exists(), "an earlier start of the same job"
    for name in ("9-0", "10-0"):  # these jobs have ended, the lock of the process is released
        held = ray_node._held[names.index(name) - len(names)]
        assert held is not None
        held.release()
    days_ago = (time.time() - 2 * ray_node.KEPT_S,) * 2
    for folder in folders.values():  # its job has begun then
        for path in (folder / "lock", folder):
            if path.exists():
                os.utime(path, days_ago)
    (tmp_path / folders["10-0"].name.replace("10-0", "11-0")).mkdir()  # of a version without a lock
    ray_node.temporary_folder("12-0", place)
    assert folders["9-0"].exists() and folders["10-0"].exists(), "they may have ended a moment ago"
    os.utime(folders["10-0"] / "ended", days_ago)
    ray_node.temporary_folder("13-0", place)
    kept = {"7-1", "8-0", "9-0", "11-0", "12-0", "13-0"}
    assert {path.name.removeprefix("fb-").rpartition("-")[0] for path in tmp_path.iterdir()} == kept
    for held in ray_node._held:
        if held is not None:
            held.release()
    ray_node._held.clear()


@pytest.mark.variation
def test_ray_that_does_not_start_is_started_again_and_its_last_words_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "none")
    try:
        assert ray_node.main(["7-0", "", "head", "127.0.0.1"]) == 1
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    out, err = capfd.readouterr()
    assert out.startswith(f"{socket.gethostname()}: Ray ended with code 2: Error: Invalid value for '--num-cpus'")
    assert err.count("Error: Invalid value") == ray_node.TRIES
