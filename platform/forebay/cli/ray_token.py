"""Token of this user, shown to a Ray of this machine."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

MODE = "RAY_AUTH_MODE"


def show_token() -> None:
    """Let Ray use this user's token, as for a Ray that it starts itself.

    Since 2.60 Ray starts with a token, and a process that connects to an address shows none unless `RAY_AUTH_MODE` says
    so. A Ray of another machine gets none. Ray reads the variable when it is imported.
    """
    if MODE not in os.environ and "ray" not in sys.modules and _has_token() and _is_here(_host()):
        os.environ[MODE] = "token"


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    with suppress(OSError, RuntimeError):  # a user without a home
        return Path("~/.ray/auth_token").expanduser().is_file()
    return False


def _host() -> str:
    """Return the host of `RAY_ADDRESS`, empty for a Ray of this machine."""
    address = os.environ.get("RAY_ADDRESS", "").rpartition("://")[2]
    return "" if address in ("auto", "local") else address.rpartition(":")[0].strip("[]")


def _is_here(host: str) -> bool:
    """Whether a host is this machine: an address is, if a socket can be bound to it."""
    if not host:
        return True
    with suppress(OSError):
        for family, kind, number, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, number) as bound:
                bound.bind(address)
                return True
    return False
