"""A lost node takes workers and processes of trials. Each trial continues from its own checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray._private import state
from tests.ray.sweep.small_sweeps import STEPS_PER_EPOCH, SmallSweeps

from forebay.events import EpochEnded, Event
from forebay.sweep.run_sweep import run_sweep
from forebay.testing.drivers.nodes import SmallNodes
from forebay.training.driver.elastic.client import names
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import load_result

KEYS = ("a", "b", "c")
EPOCHS, WAIT_S = 2, 120.0
WORKER = "RayTrainWorker"


@dataclass(frozen=True)
class Gathering:
    """Reports the end of a trial's first epoch, then waits until the node is lost."""

    mark: Path
    lost: Path

    def __call__(self, event: Event, control: Control) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 0:
            self.mark.touch()
            until(self.lost.exists)


def gathering_in(folder: Path) -> Callable[..., Sequence[Callback]]:
    def gathering(key: str) -> Sequence[Callback]:
        return [Gathering(folder / f"there-{key}", folder / "lost")]

    return gathering


@pytest.fixture
def nodes(ray_off: None) -> Iterator[SmallNodes]:
    """One slot on the head, two on the node that will be lost."""
    found = SmallNodes(others=1, cpus=2)
    yield found
    found.close()


@pytest.mark.variation
def test_trials_of_a_lost_node_go_on_from_their_own_commits(nodes: SmallNodes, tmp_path: Path) -> None:
    """One slot is left for three trials, which have to take turns."""
    small = SmallSweeps(tmp_path)
    sweep = small.sweep(
        {"key": {"grid_search": list(KEYS)}},
        num_trials=len(KEYS),
        driver="ray",
        fixed={"epochs": EPOCHS, "checkpoint_every": 1},
        callbacks=gathering_in(tmp_path),
    )
    doomed = nodes.others[0]
    workers: list[str] = []

    def lose() -> None:
        until(lambda: all((tmp_path / f"there-{key}").exists() for key in KEYS))
        workers.extend(workers_on(doomed))
        nodes.kill(doomed)
        (tmp_path / "lost").touch()

    losing = threading.Thread(target=lose)
    losing.start()
    try:
        result = run_sweep(sweep, show=False)
    finally:
        losing.join()
    assert len(workers) == 2, "the node was to be lost with the workers of two trials"
    assert list(result.table["state"]) == ["finished"] * len(KEYS)
    assert list(result.table["epochs"]) == [EPOCHS] * len(KEYS)
    for key in KEYS:
        assert sorted(set(small.steps(key))) == list(range(EPOCHS * STEPS_PER_EPOCH))
        assert small.steps_redone(key) <= 3, f"trial {key} did not go on from its newest commit"
    for run in result.table["run"]:
        ended = load_result(run)
        assert ended is not None and ended.is_finished and len(ended.epochs) == EPOCHS
    deadline = time.monotonic() + WAIT_S
    while names("tiny.") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert names("tiny.") == []


def workers_on(node: str) -> list[str]:
    """The workers on a node, from Ray's internal table, because the public State API needs a dashboard."""
    return [
        actor["ActorID"]
        for actor in state.actors().values()
        if actor["State"] == "ALIVE" and WORKER in actor["ActorClassName"] and actor["Address"]["NodeID"] == node
    ]


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
