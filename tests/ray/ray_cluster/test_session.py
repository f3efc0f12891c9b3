"""A `RAY_ADDRESS` that leads nowhere is reported at once, with the remedy."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
import ray

from forebay.errors import InvalidOption
from forebay.ray_cluster.session import ray_session, session_text
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run

pytestmark = pytest.mark.usefixtures("ray_off")


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:8265", r"dashboard.* host:port .*ray://host:10001.*'auto'"),
        ("https://ray.example.org", r"dashboard"),
        ("127.0.0.1:{dead}", r"does not answer .*unset RAY_ADDRESS"),
        ("ray://127.0.0.1:{dead}", r"does not answer"),
        ("127.0.0.1:99999", r"does not answer"),
        ("gopher://nowhere", r"does not answer"),
    ],
)
def test_address_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, said: str) -> None:
    address = address.format(dead=dead_port())
    monkeypatch.setenv("RAY_ADDRESS", address)
    began, before = time.monotonic(), dict(os.environ)
    with pytest.raises(InvalidOption, match=rf"RAY_ADDRESS={address} .*{said}"):
        run(DriverBench(tmp_path).job("lost"), "ray")
    assert time.monotonic() - began < 60.0, "Ray itself tries for minutes"
    assert dict(os.environ) == before
    assert not ray.is_initialized()


def test_what_ray_says_about_an_address_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise ConnectionError("no cluster on this node")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", refuse)
    with (
        pytest.raises(InvalidOption, match=r"RAY_ADDRESS=auto does not answer \(no cluster on this node\)"),
        ray_session(1),
    ):
        pass


def test_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert session_text() == "starting Ray on this machine"
