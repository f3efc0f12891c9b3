"""Ray on a node of a SLURM job: its port, and the reason why it does not start."""

from __future__ import annotations

import signal
import socket
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
