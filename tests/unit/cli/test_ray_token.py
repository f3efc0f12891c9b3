"""The token of a user is shown to a Ray of this machine, and to no other."""

from __future__ import annotations

import socket
import sys
from os import environ
from pathlib import Path

import pytest

from forebay.cli.ray_token import MODE, show_token


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [
        (None, True),
        ("", True),
        ("auto", True),
        ("localhost:6379", True),
        ("127.0.0.1:6379", True),
        ("ray://127.0.0.1:10001", True),
        ("[::1]:6379", socket.has_ipv6),
        ("192.0.2.77:6379", False),
        ("ray://192.0.2.77:10001", False),
        ("no-such-host.invalid:6379", False),
    ],
)
def test_only_to_a_ray_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, is_shown: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (MODE, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # put back what it was
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    show_token()
    assert MODE not in environ, "there is no token"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    monkeypatch.setenv(MODE, "disabled")
    show_token()
    assert environ[MODE] == "disabled", "the user's own word counts"
    monkeypatch.delenv(MODE)
    show_token()
    assert (environ.get(MODE) == "token") == is_shown
