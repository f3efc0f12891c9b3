"""Start of Ray on this machine, or the reason that it failed.

Ray says it in many ways: a path that is too long, a process whose log has the reason, or a time limit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import tempfile
import traceback
from pathlib import Path

import ray
from ray._private.node import Node  # no public way to end a half-started one; ray_cluster/private_names.py

from forebay.errors import ForebayError, RayNotStarted, WriteFailed
from forebay.runtime.foreign_code import outcome_of

TMPDIR = "RAY_TMPDIR"
PORT = "RAY_GCS_SERVER_PORT"
"""The only port of a Ray of its own that a variable names."""
_LONGEST = 107
"""Bytes of the path of a Unix socket on Linux. macOS has 3 fewer."""
_SOCKET = "/ray/session_2026-11-26_12-00-00_123456_1234567/sockets/plasma_store"
"""What Ray adds to its folder."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 1 << 20
"""Room without which no session starts: its logs take more."""
_TRIES = 2
_LINES = re.compile(r" Last (\d+ lines|connection error).*")
_LATE = ("timed out", "timeout", "deadline exceeded", "overloaded")
_TAKEN = ("already in use", "failed to bind")
_MEMORY = Path("/dev/shm")  # noqa: S108 - where Ray keeps objects on Linux

log = logging.getLogger(__name__)


def start_ray(num_cpus: int) -> None:
    """Start Ray with `num_cpus` CPUs on this machine, and connect.

    Tries again once, unless the cause stays. Raises `RayNotStarted`, and `WriteFailed` on a full disk.
    """
    _check_folder()
    _check_memory()
    _check_port()
    for tries_left in reversed(range(_TRIES)):
        if (error := outcome_of(lambda: _init(num_cpus)).error) is None:
            return
        _end_half_started(error)
        if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
            raise error
        if not tries_left or _stays(error):
            raise _not_started(error) from error
        log.warning("Ray did not start on this machine (%s). Trying once more.", _reason(error))


def _init(num_cpus: int) -> None:
    ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, logging_level=logging.ERROR)


def _folder() -> str:
    return os.environ.get(TMPDIR) or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - where Ray puts its sessions


def _check_folder() -> None:
    """Raise `RayNotStarted` if the folder cannot hold a session of Ray, and `WriteFailed` if its disk is full."""
    folder, option = _folder(), TMPDIR if os.environ.get(TMPDIR) else "TMPDIR" if os.environ.get("TMPDIR") else ""
    named = f"{option}={folder!r}" if option else repr(folder)
    room = _LONGEST - len(_SOCKET)
    if len(os.fsencode(folder)) > room:
        raise RayNotStarted(
            f"Ray cannot start on this machine: {named} is {len(os.fsencode(folder))} bytes long, and with the names "
            f"of Ray's sockets it would be longer than the system allows. Set {TMPDIR} to a folder of at most {room} "
            "bytes.",
            folder=folder,
        )
    if (error := _refusal(Path(folder))) is not None:
        raise _refused(
            f"Ray cannot start on this machine: its folder {named} cannot be written ({error}). Set {TMPDIR} to a "
            "short folder with room that this user may write to.",
            folder,
            error,
        ) from error


def _check_memory() -> None:
    """Raise `RayNotStarted` if objects cannot be kept in memory. Ray itself waits for its node in vain."""
    if _MEMORY.exists() and (error := _refusal(_MEMORY)) is not None:
        raise _refused(
            f"Ray cannot start on this machine: it keeps objects in {_MEMORY}, which cannot be written ({error}). "
            "Mount a tmpfs there; in a container, give it memory (`--shm-size`).",
            str(_MEMORY),
            error,
        )


def _check_port() -> None:
    """Raise `RayNotStarted` if the port of Ray's head is in use. Ray itself waits for answers, for minutes."""
    if not (port := os.environ.get(PORT, "")).isdigit():
        return
    try:
        with socket.create_server(("", int(port))):
            pass
    except (OSError, OverflowError) as error:
        raise RayNotStarted(
            f"Ray cannot start on this machine: {PORT}={port} is not free ({error}). Unset {PORT}, or end the "
            "program that has the port.",
            port=port,
        ) from error


def _refusal(folder: Path) -> OSError | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_LEAST_BYTES))  # a full disk takes the name of a file
            file.flush()
    except OSError as error:
        return error
    return None


def _refused(message: str, folder: str, error: OSError) -> ForebayError:
    """Return the error of a folder that cannot be written. A full disk is the machine's fault."""
    return (WriteFailed if error.errno in _FULL else RayNotStarted)(message, folder=folder)


def _end_half_started(error: BaseException) -> None:
    """End the processes of a Ray that did not start completely.

    Ray itself ends them only when this process ends, and a second one would share the machine with them.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("self")
        if isinstance(node, Node):
            with contextlib.suppress(OSError, RuntimeError, AttributeError):  # it is half made
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            break
    with contextlib.suppress(RuntimeError):
        ray.shutdown()


def _is_late(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or any(word in str(error).lower() for word in _LATE)


def _stays(error: BaseException) -> bool:
    """Whether a second try would fail as well: an option, the disk, a permission."""
    return isinstance(error, OSError | ValueError | TypeError | LookupError) and not isinstance(
        error, TimeoutError | ConnectionError
    )


def _reason(error: BaseException) -> str:
    # Of Ray's store of facts, "Last 3 lines of error files:" follows, and then they.
    line = str(error).partition("\n")[0]
    return _LINES.sub("", " ".join(line.split())).rstrip(". ") or type(error).__name__


def _not_started(error: BaseException) -> RayNotStarted:
    text, reason, logs = str(error), _reason(error), f"{_folder()}/ray/session_latest/logs"
    if any(word in text.lower() for word in _TAKEN):
        remedy = "A port is in use: unset the ports in the variables RAY_*_PORT, or end the program that has it."
    elif _is_late(error):
        load, cpus = os.getloadavg()[0], os.cpu_count() or 1
        remedy = (
            f"The machine has {cpus} CPUs and a load of {load:.0f}: end other programs, look at Ray's logs in {logs}, "
            "or start a cluster once (`ray start --head`) and set RAY_ADDRESS=auto."
        )
    elif isinstance(error, OSError) and _stays(error):
        remedy = f"Look at the disk, the memory and /dev/shm, and set {TMPDIR} to a short folder with room."
    else:
        remedy = f"Ray's logs have the cause: {logs}."
    return RayNotStarted(f"Ray cannot start on this machine ({reason}). {remedy}", reason=reason)
