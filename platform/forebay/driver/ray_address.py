"""Where a Ray cluster is, and under which names the runs on it are found."""

from __future__ import annotations

import logging
import socket

import ray

from forebay.errors import InvalidOption

ADDRESS = "RAY_ADDRESS"
ANSWER_S = 5.0

NAMESPACE = "forebay"
PREFIX = "run-"
"""Before a run's name: the name of its coordinator in `NAMESPACE`."""


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
