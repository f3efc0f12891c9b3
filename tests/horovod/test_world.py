"""A Horovod world that breaks: all ranks are free at once, whomever they wait for."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.horovod.conftest import RANK_S, run_places

from forebay.runtime.foreign_code import outcome_of
from forebay.training.collectives.collective import Collective
from forebay.training.driver.horovod.collective import is_broken
from forebay.training.driver.horovod.world import RankAssignment, horovod_world

SIZE, KILLED = 4, 1
CUT = (1, 2)
LONG_S = 10 * RANK_S
# 0.1 s or more.
LONG = 1 << 24


def outlive_a_rank(place: RankAssignment, folder: Path) -> bool:
    """Reduce until rank 1 has died. Returns whether this rank noticed."""

    def reduce(collective: Collective) -> None:
        if place.world.rank == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            collective.all_reduce(np.ones(1))

    return is_broken(error_of(reduce, place, folder, survivors=SIZE - 1))


def outlive_a_connection(place: RankAssignment, folder: Path) -> bool:
    """Reduce until the connections of ranks 1 and 2 are cut. Returns whether this rank noticed."""

    def reduce(collective: Collective) -> None:
        ends = {
            (*entry.laddr, *entry.raddr): entry.fd for entry in psutil.Process().net_connections("tcp") if entry.raddr
        }
        (folder / f"ends-{place.world.rank}").write_text(json.dumps(list(ends)))
        collective.all_reduce(np.ones(1))
        if place.world.rank == CUT[0]:
            others = {(*end[2:], *end[:2]) for end in json.loads((folder / f"ends-{CUT[1]}").read_text())}
            shared = [ends[end] for end in ends.keys() & others]
            assert shared
            threading.Timer(0.05, cut, [shared]).start()
        while True:
            collective.all_reduce(np.ones(LONG, np.float32))

    return is_broken(error_of(reduce, place, folder, survivors=SIZE))


def cut(descriptors: Collection[int]) -> None:
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def error_of(
    reduce: Callable[[Collective], None], place: RankAssignment, folder: Path, *, survivors: int
) -> BaseException | None:
    """Error that ended `reduce` in a world. No process ends before all have left it."""

    def train() -> None:
        with horovod_world(place, torch.device("cpu"), LONG_S) as collective:
            collective.all_reduce(np.ones(1))
            reduce(collective)

    error = outcome_of(train).error
    (folder / f"left-{place.world.rank}").touch()
    while len(list(folder.glob("left-*"))) < survivors:
        time.sleep(0.02)
    return error


@pytest.mark.parametrize(
    ("outlive", "killed"),
    [
        pytest.param(outlive_a_rank, {KILLED}, id="rank"),
        pytest.param(outlive_a_connection, set(), id="connection", marks=pytest.mark.variation),
    ],
)
def test_ranks_of_a_broken_world_are_free_at_once_whomever_they_wait_for(
    outlive: Callable[[RankAssignment, Path], bool],
    killed: set[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Then ranks other than the first ask only the first one, and never the one that is lost.
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "0")
    assert all(run_places(SIZE, outlive, tmp_path, killed=killed))
