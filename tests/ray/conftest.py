"""One quiet Ray for all tests below this folder, and a guard against actors and groups that tests leave behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest
import ray
from ray._private import state as ray_state
from ray.actor import ActorHandle
from ray.util.placement_group import placement_group_table
from tests.preloaded.workers import forked_workers

from forebay.cli.app import main
from forebay.ray_cluster.actors import NAMESPACE, RUN_PREFIX
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.runs.status import RunStatus

GRACE_S = 30.0
SETTLE_S = 0.1
# By design, one cache actor and one data node actor per node outlive every job, and so do two actors of Ray Data.
DETACHED_BY_DESIGN = ("forebay-cache-", "forebay-data-", "datasets_stats_actor", "AutoscalingCoordinator")


@pytest.fixture(scope="session", autouse=True)
def preloaded_workers() -> Iterator[None]:
    """Workers of Ray fork from a process that has imported PyTorch: in `make test`."""
    with forked_workers():
        yield


@pytest.fixture(scope="session", autouse=True)
def ray_ends_with_session(preloaded_workers: None) -> Iterator[None]:
    """Shut Ray down after the last test, whichever test started it."""
    yield
    ray.shutdown()


@pytest.fixture
def ray_session() -> None:
    """A local Ray of 8 CPUs. The first test that needs it starts it, all later ones share it."""
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


@pytest.fixture
def forebay(ray_session: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Function that runs a command line in this process, on the shared Ray. Returns exit code, output and errors."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def under_way(ray_session: None) -> Iterator[Callable[..., ActorHandle]]:
    """Function that starts the coordinator of a run without a driver: 2 workers of at most 4, unless `facts` differ."""
    made = []

    def make(name: str, **facts: object) -> ActorHandle:
        place = {"driver": "ray", "started_at": time.time(), "node": "here", "path": f"runs/{name}"}
        size = {"target": 2, "min_workers": 1, "max_workers": 4, "epochs": 40}
        status = RunStatus(**({"name": name} | place | size | facts))  # type: ignore[arg-type]
        placed = ray.remote(Coordinator).options(name=f"{RUN_PREFIX}{name}", namespace=NAMESPACE, num_cpus=0)
        made.append(placed.remote(status))
        ray.get(made[-1].target.remote())
        return made[-1]

    yield make
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def ray_off() -> Iterator[None]:
    """No Ray at the start and the end of the test: for tests that start a cluster or call `ray.init`."""
    ray.shutdown()
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def no_leaked_ray_state() -> Iterator[None]:
    """Fail a test whose actors or placement groups are still alive half a minute after it ended."""
    before = _ray_state()
    yield
    deadline = time.monotonic() + GRACE_S
    while leaked := _ray_state() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind in Ray: {', '.join(sorted(leaked))}", pytrace=False)
        time.sleep(SETTLE_S)


def _ray_state() -> set[str]:
    if not ray.is_initialized():
        return set()
    # Ray's internal table: most actors have no name, and the public State API needs a dashboard.
    actors = {
        f"actor {actor['Name'] or actor['ActorClassName']} {actor['ActorID']}"
        for actor in ray_state.actors().values()
        if actor["State"] != "DEAD"
    }
    groups = {
        f"placement group {group_id}"
        for group_id, facts in placement_group_table().items()
        if facts["state"] != "REMOVED"
    }
    return {name for name in actors if not any(known in name for known in DETACHED_BY_DESIGN)} | groups
