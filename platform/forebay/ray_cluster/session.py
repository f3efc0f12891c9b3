"""Where a Ray cluster is, and under which names the runs on it are found."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray

from forebay.errors import InvalidOption

ADDRESS = "RAY_ADDRESS"
ANSWER_S = 5.0


def connect(address: str) -> None:
    """`ray.init` with `RAY_ADDRESS`, but at once where it would try for minutes to reach what is not there.

    Raises `InvalidOption` for an address that is none, or that does not answer.
    """
    scheme, _, place = address.rpartition("://")
    if scheme in ("http", "https"):
        raise InvalidOption(
            f"{ADDRESS}={address} is the address of Ray's dashboard, which takes submitted jobs only. A run connects "
            "to host:port as `ray start --head` printed it (port 6379), to ray://host:10001, or to 'auto' on a node "
            "of the cluster.",
            address=address,
        )
    host, _, port = place.rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
        ray.init(address=address, logging_level=logging.ERROR)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        ray.shutdown()
        raise InvalidOption(
            f"{ADDRESS}={address} does not answer ({error}). Give the address of a cluster that is running (host:port, "
            f"ray://host:port, or 'auto' on one of its nodes), or unset {ADDRESS} to start Ray on this machine.",
            address=address,
        ) from error


# Defaults of Ray Train that a run would trip over (Ray 2.60); a variable that is set already is left alone.
TRAIN_ENVIRONMENT: Mapping[str, str] = {
    # 2 s by default, which is how late a lost worker is noticed.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # 60 s by default: how long a new attempt may wait for a node that has just died.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    # It makes the controller wait for workers to leave a draining node, and ours do not listen to it.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Workers stay in the folder they were started in, so that relative paths mean what they meant on the driver.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Otherwise every line that a train function prints appears twice.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # Its actor and its gauges; Forebay reports its own.
    "RAY_TRAIN_METRICS_ENABLED": "0",
}


def session_text() -> str:
    """What `ray_session` is about to do, for people."""
    if ray.is_initialized():
        return "using the Ray of this process"
    if os.environ.get(ADDRESS):
        return f"connecting to Ray at {os.environ[ADDRESS]}"
    return "starting Ray on this machine"


@contextmanager
def ray_session(num_cpus: int) -> Iterator[bool]:
    """Use the Ray that is running, the cluster at `RAY_ADDRESS`, or one started on this machine, in this order.

    A Ray started here has `num_cpus` CPUs, or as many as the machine has if that is more.

    Yields whether this machine's Ray was started here, and so ends with the block. Raises `InvalidOption` for a
    `RAY_ADDRESS` that is none, or that does not answer.
    """
    if ray.is_initialized():
        yield False
        return
    address = os.environ.get(ADDRESS)
    with _environment_put_back():
        if not address:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, num_cpus),
                include_dashboard=False,
                logging_level=logging.ERROR,
            )
        else:
            connect(address)
        try:
            yield not address
        finally:
            ray.shutdown()


@contextmanager
def train_environment() -> Iterator[None]:
    """`TRAIN_ENVIRONMENT` for the length of the block; Ray Train hands it on to its controller and workers."""
    with environment_defaults(TRAIN_ENVIRONMENT):
        yield


@contextmanager
def environment_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Those of `defaults` that are not set otherwise, as environment variables for the length of the block."""
    missing = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def _environment_put_back() -> Iterator[None]:
    """`ray.init` leaves variables behind (`RAY_AUTH_MODE`, `RAY_USAGE_STATS_ENABLED`, ...)."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            if name.startswith("RAY_") or name == "PYTHONBREAKPOINT":
                del os.environ[name]
