"""Fixtures of Horovod's tests: a Ray as in tests/ray, and processes that meet in Horovod.

The tests run wherever Horovod can be built.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import cloudpickle
import pytest
import torch
from scripts.build_horovod import what_is_missing
from tests.ray.conftest import no_leaked_ray_state as no_leaked_ray_state
from tests.ray.conftest import preloaded_workers as preloaded_workers
from tests.ray.conftest import ray_ends_with_session as ray_ends_with_session
from tests.ray.conftest import ray_off as ray_off
from tests.ray.conftest import ray_session as ray_session

from forebay.training.driver.horovod.backend import Rendezvous
from forebay.training.driver.horovod.world import RankAssignment, horovod_world
from forebay.world import World

HERE = "127.0.0.1"
RANK_S, HANG_S = 120.0, 30.0
RANKS = """
import os, pickle, sys
import torch
from forebay.training.driver.warm_up import use_interface_of

torch.set_num_threads(1)
use_interface_of("127.0.0.1")
places, work, args = pickle.load(sys.stdin.buffer)
ranks = []
# Imported once, then forked: no thread has started yet.
for place in places:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        break
    os.close(write_end)
    ranks.append((pid, read_end))
if len(ranks) == len(places):
    answers = [open(read_end, "rb").read() for _, read_end in ranks]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in ranks]
    pickle.dump((answers, codes), sys.stdout.buffer)
else:
    sys.stdout = sys.stderr
    with open(write_end, "wb") as answer:
        answer.write(pickle.dumps(work(place, *args)))
"""


@pytest.fixture(scope="session", autouse=True)
def horovod_is_there() -> None:
    """Without Horovod, skip where it cannot be built. Fail where it could be built but was not."""
    if find_spec("horovod") is None:
        missing = what_is_missing()
        if missing:
            pytest.skip(f"Horovod cannot be built: {missing}")
        pytest.fail("Horovod is not installed, though this machine can build it: run `make horovod`.", pytrace=False)


def run_ranks(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `work(collective, *args)` on `size` ranks of a world. Returns the answers by rank."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return run_places(size, partial(in_world, work), *args, module=work.__module__)


def in_world(work: Callable[..., Any], place: RankAssignment, *args: Any) -> Any:
    with horovod_world(place, torch.device("cpu"), HANG_S) as collective:
        return work(collective, *args)


def run_places(
    size: int, work: Callable[..., Any], *args: Any, module: str | None = None, killed: Collection[int] = ()
) -> list[Any]:
    """Run `work(place, *args)` on `size` ranks, one process each. Returns the answers of those not `killed`."""
    cloudpickle.register_pickle_by_value(sys.modules[module or work.__module__])
    hosts = [f"host-{rank}" for rank in range(size)]
    meeting = Rendezvous(HERE, hosts)
    places = [
        RankAssignment(number=1, world=World(rank=rank, size=size), host=host, rendezvous=meeting.bound_to)
        for rank, host in enumerate(hosts)
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", RANKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        answers, codes = pickle.loads(process.communicate(cloudpickle.dumps((places, work, args)), timeout=RANK_S)[0])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        meeting.close()
    assert codes == [-signal.SIGKILL if rank in killed else 0 for rank in range(size)]
    return [pickle.loads(answer) for rank, answer in enumerate(answers) if rank not in killed]
