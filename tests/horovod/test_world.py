"""A Horovod world of which one rank dies: the others are free at once, whomever they wait for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.horovod.conftest import RANK_S, run_places

from forebay.runtime.foreign_code import outcome_of
from forebay.training.driver.horovod.collective import is_broken
from forebay.training.driver.horovod.world import RankAssignment, horovod_world

KILLED = 1
LONG_S = 10 * RANK_S


def outlive(place: RankAssignment, left: Path) -> bool:
    """Reduce until rank 1 has died. Returns whether this rank noticed. No process ends before all have."""

    def train() -> None:
        with horovod_world(place, torch.device("cpu"), LONG_S) as collective:
            collective.all_reduce(np.ones(1))
            if place.world.rank == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                collective.all_reduce(np.ones(1))

    error = outcome_of(train).error
    (left / str(place.world.rank)).touch()
    while len(list(left.iterdir())) < place.world.size - 1:
        time.sleep(0.02)
    return is_broken(error)


def test_rank_that_waits_for_a_survivor_is_free_once_that_one_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Then ranks other than the first ask only the first one, and never the dead one.
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "0")
    assert all(run_places(4, outlive, tmp_path, killed={KILLED}))
