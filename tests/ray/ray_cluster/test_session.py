"""A `RAY_ADDRESS` that leads nowhere is reported at once, with the remedy."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

from forebay.errors import ExitCode, InvalidOption
from forebay.ray_cluster.session import _handler_of_term, ray_session, session_text
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


@pytest.mark.parametrize("own_code", [None, pytest.param(7, marks=pytest.mark.variation)])
def test_sigterm_while_ray_waits_keeps_its_code(own_code: int | None) -> None:
    """Ray makes 1 of the code with which a handler exits."""

    def wait() -> None:
        with ray_session(1):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
            ray.get(ray.remote(lambda: time.sleep(60)).remote())

    before = signal.signal(signal.SIGTERM, (lambda *_: sys.exit(own_code)) if own_code else signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught:
            wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == (own_code or ExitCode.TERMINATED)


def test_lines_of_workers_have_no_escape_codes_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with ray_session(1):
        ray.get(ray.remote(lambda: print("from a worker")).remote())
        give_up, seen = time.monotonic() + 30.0, ""
        while "from a worker" not in seen and time.monotonic() < give_up:
            time.sleep(0.1)
            seen += capsys.readouterr().out
    assert "from a worker" in seen
    assert "\x1b" not in seen
    assert "RAY_COLOR_PREFIX" not in os.environ


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


def test_another_version_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of another Python needs an environment of its own: `make test-python`. The text is Ray 2.60's."""

    def refuse(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.13.0\n")

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "init", refuse)
    said = r"^RAY_ADDRESS=auto has another version than this process \(Version.* Python: 3\.13\.0\)\. Run this with"
    with pytest.raises(InvalidOption, match=said) as caught, ray_session(1):
        pass
    assert "\n" not in str(caught.value)


def test_empty_address_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert session_text() == "starting Ray on this machine"


def test_sigterm_reaches_python_and_no_native_handler(capfd: pytest.CaptureFixture[str]) -> None:
    """Ray's prints addresses, and aborts the process 3 s later. The one of `faulthandler` stands for it."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with _handler_of_term() as keep_handler:
            faulthandler.register(signal.SIGTERM, file=2, chain=True)
            os.kill(os.getpid(), signal.SIGTERM)
            assert "most recent call first" in capfd.readouterr().err
            keep_handler()
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        faulthandler.unregister(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 2 and capfd.readouterr().err == ""


@pytest.mark.parametrize("code", [signal.SIGTERM, 1])
def test_sigterm_while_ray_starts_ends_with_our_code(code: int) -> None:
    """Then the handler is Ray's, which exits with 15."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught, _handler_of_term():
            sys.exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == ExitCode.TERMINATED


@pytest.mark.parametrize("ignored", [True, False])
def test_who_ignores_sigterm_goes_on_doing_so(ignored: bool) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with _handler_of_term() as keep_handler:
            signal.signal(signal.SIGTERM, lambda *_: None)  # as `ray.init` does
            keep_handler()
            inside = signal.getsignal(signal.SIGTERM)
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert after == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    assert (inside == signal.SIG_IGN) is ignored and (ignored or callable(inside))
