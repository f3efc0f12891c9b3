"""Connection of a process to Ray, and its environment."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import ray

from forebay.errors import ExitCode, InvalidOption
from forebay.ray_cluster.local_start import start_ray
from forebay.ray_cluster.private_names import check_ray
from forebay.runtime.extras import validate_extra

ADDRESS = "RAY_ADDRESS"
ANSWER_S = 5.0


def connect(address: str) -> None:
    """Call `ray.init` with `address`.

    Fails at once for an address that does not answer, while Ray retries for minutes.

    Raises `InvalidOption` for an invalid address, and for one that does not answer.
    """
    scheme, _, host_and_port = address.rpartition("://")
    if scheme in ("http", "https"):
        raise InvalidOption(
            f"{ADDRESS}={address} is the address of Ray's dashboard, which takes submitted jobs only. A run connects "
            "to host:port as `ray start --head` printed it (port 6379), to ray://host:10001, or to 'auto' on a node "
            "of the cluster.",
            address=address,
        )
    host, _, port = host_and_port.rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
        ray.init(address=address, logging_level=logging.ERROR)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        ray.shutdown()
        is_named = bool(os.environ.get(ADDRESS))
        what = f"{ADDRESS}={address}" if is_named else f"the Ray of this machine at {address}"
        if _asks_for_token(error):
            raise InvalidOption(
                f"{what} asks for a token, and does not take the one of this process. Set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN_PATH to the file of its user (~/.ray/auth_token there).",
                address=address,
            ) from error
        said = " ".join(str(error).split()) or type(error).__name__
        if "Version mismatch" in said:
            raise InvalidOption(
                f"{what} has another version than this process ({said}). Run this with the Python and the Ray of the "
                f"cluster, or unset {ADDRESS} to start Ray on this machine.",
                address=address,
            ) from error
        remedy = (
            "Give the address of a cluster that is running (host:port, ray://host:port, or 'auto' on one of its "
            f"nodes), or unset {ADDRESS} to start Ray on this machine."
            if is_named
            else "It is starting or ending: try again."
        )
        raise InvalidOption(f"{what} does not answer ({said}). {remedy}", address=address) from error


def _asks_for_token(error: BaseException | None) -> bool:
    """Whether Ray was refused for its token. Its words are in the causes of the error."""
    while error is not None:
        if "InvalidAuthToken" in str(error) or "Unauthenticated" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# Defaults of Ray Train that do not suit a run (Ray 2.60). A variable that is already set is kept.
TRAIN_ENVIRONMENT: Mapping[str, str] = {
    # 60 s by default: the time that a new attempt may wait for a node that has just died.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    # It makes the controller wait until workers leave a draining node, but ours do not react to it.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Workers stay in the folder where they were started, so that relative paths are the same as on the driver.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Otherwise every line that a train function prints appears twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Its actor and its gauges. Forebay reports its own.
    "RAY_TRAIN_METRICS_ENABLED": "0",
}

POLL_OF_TRAIN = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
LEAST_POLL_S, POLL_OF_WORKER_S = 0.2, 0.0005
"""Ray Train's controller asks each worker for its state, in 0.2 ms of its CPU time. At 4,096 workers and the least
interval, it would be 20,000 calls a second, and it makes 5,000.
"""


def session_text() -> str:
    """Description of the next step of `ray_session`, for people."""
    if ray.is_initialized():
        return "using the Ray of this process"
    if os.environ.get(ADDRESS):
        return f"connecting to Ray at {os.environ[ADDRESS]}"
    return "starting Ray on this machine"


@contextmanager
def ray_session(num_cpus: int) -> Iterator[bool]:
    """Connect to Ray.

    This is the connection of this process, the cluster at `RAY_ADDRESS`, or a new Ray on this machine.

    The first of these that exists is used. A Ray started here has `num_cpus` CPUs, or as many as the machine has if
    that is more.

    Yields whether Ray was started here, and so ends with the block. Raises `RayNotStarted` if that fails,
    `InvalidOption` for a `RAY_ADDRESS` that is invalid, or that does not answer, `MissingPackage` if a package of the
    extra `ray` is too old, and `UnsupportedRay` if this Ray has not all that Forebay uses.
    """
    check_ray()
    if ray.is_initialized():
        yield False
        return
    validate_extra("ray", "A session of Ray")
    address = os.environ.get(ADDRESS)
    with _environment_put_back(), _handler_of_term() as keep_handler:
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # or a log file has escape codes before each worker's line
        if not address:
            start_ray(max(os.cpu_count() or 1, num_cpus))
        else:
            connect(address)
        keep_handler()
        try:
            yield not address
        finally:
            ray.shutdown()


@contextmanager
def _handler_of_term() -> Iterator[Callable[[], object]]:
    """Put back the handler of SIGTERM, which `ray.init` replaces.

    Yields a function to call after `ray.init`. Without a handler, the process ends with the code of Forebay, not with
    Ray's 15. Ray's native handler goes too: it prints addresses, and aborts the process 3 s later, in its end.
    A handler that exits while Ray waits keeps its code: Ray makes 1 of each.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:  # one in C cannot be put back
        yield lambda: None
        return
    ends, is_ours = list[SystemExit](), False

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            if not callable(before):
                sys.exit(ExitCode.TERMINATED)
            before(number, frame)
        except SystemExit as end:
            ends.append(end)
            raise

    def keep() -> None:
        nonlocal is_ours
        signal.signal(signal.SIGTERM, signal.SIG_IGN if before is signal.SIG_IGN else handle)
        is_ours = True

    try:
        yield keep
    except SystemExit as error:
        if not is_ours and error.code in (signal.SIGTERM, 1):  # Ray's own handler, while it starts or connects
            handle(signal.SIGTERM, None)
            sys.exit(ExitCode.TERMINATED)
        if ends and error.code == 1:
            raise ends[0] from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def train_environment(workers: int = 1) -> Iterator[None]:
    """Set `TRAIN_ENVIRONMENT` in the block.

    `workers` are those of the run. Ray Train passes it on to its controller and workers.
    """
    # 2 s by default, and a lost worker is noticed that late.
    poll_s = max(LEAST_POLL_S, POLL_OF_WORKER_S * workers)
    with environment_defaults({**TRAIN_ENVIRONMENT, POLL_OF_TRAIN: f"{poll_s:g}"}):
        yield


@contextmanager
def environment_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set missing environment variables in the block."""
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _environment_put_back() -> Iterator[None]:
    """Remove variables that `ray.init` leaves behind.

    Such as `RAY_AUTH_MODE` and `RAY_USAGE_STATS_ENABLED`.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
                del os.environ[name]
