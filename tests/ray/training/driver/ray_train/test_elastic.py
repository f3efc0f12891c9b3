"""Changes of a run that need a Ray cluster: growing on request, and taking a node back."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from studies.elastic_llm import language_model_job

from forebay.events import Event, Preempted, Reported, Started
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.fixed_suite import Heard
from forebay.testing.drivers.nodes import STORE_BYTES, SmallNodes
from forebay.testing.drivers.recorded_worker import recorded_losses
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.driver.ray_train.driver import RayTrainDriver
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control

STEPS = 10
CHATS = 300


@pytest.fixture
def bench(tmp_path: Path) -> DriverBench:
    return DriverBench(tmp_path)


@pytest.fixture
def small_nodes(ray_off: None) -> Iterator[SmallNodes]:
    """The driver's node and two other nodes, of one CPU each."""
    nodes = SmallNodes(others=2, cpus=1, head_cpus=1)
    try:
        yield nodes
    finally:
        nodes.close()


# Like `ray.cluster_utils.AutoscalingCluster`, which however ends every Ray of the machine when it starts and ends.
FAKE_PROVIDER = {
    "type": "fake_multinode",
    "use_node_id_as_ip": True,
    "disable_node_updaters": True,
    "disable_launch_config_check": True,
}
HEAD_TYPE = "ray.head.default"  # the fake provider knows no other
NOTHING = (
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
AUTOSCALING = {
    "cluster_name": "fake_multinode",
    "max_workers": 1,
    "available_node_types": {
        HEAD_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "small": {
            "resources": {"CPU": 1, "object_store_memory": STORE_BYTES},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 1,
        },
    },
    "head_node_type": HEAD_TYPE,
    "auth": {},
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 1.0,
    "docker": {},
    **{name: [] for name in NOTHING},
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
}


@pytest.fixture
def autoscaling_cluster(ray_off: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A head of one CPU, to which Ray's fake provider adds a node of one CPU on demand."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    config = tmp_path / "autoscaling.json"
    config.write_text(json.dumps(AUTOSCALING | {"provider": FAKE_PROVIDER | {"gcs_address": address}}))
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    monkeypatch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
    head = {
        "num_cpus": 1,
        "gcs_server_port": port,
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "autoscaling_config": str(config),
        "env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID},
    }
    others = set(psutil.Process().children(recursive=True))  # such as the server from which workers of Ray fork
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        # The provider's nodes are children of the cluster's monitor, which does not end them.
        below = set(psutil.Process().children(recursive=True)) - others
        cluster.shutdown()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def pending_places() -> int:
    return sum(facts["state"] == "PENDING" for facts in placement_group_table().values())


def test_unmet_target_is_demand_while_training_goes_on(autoscaling_cluster: None, bench: DriverBench) -> None:
    heard, pending, grown_at = Heard(), list[int](), list[int]()

    def ask(event: Event, control: Control) -> None:
        if not isinstance(event, Reported):
            return
        if event.step == STEPS or (event.step > STEPS and control.target == 1):
            control.resize(3)
        if control.world_size == 2:
            grown_at.append(event.step)
            pending.append(pending_places())
            if event.step >= grown_at[0] + STEPS:
                control.stop("enough")

    elastic = Elastic(min_workers=1, max_workers=3, start=1)
    job = bench.job("scaled", elastic=elastic, epochs=MOST_EPOCHS, checkpoint_every=1, step_s=0.2)
    result = RayTrainDriver().run(job, [heard, ask])
    assert result.stopped == "enough"
    assert [event.world_size for event in heard if isinstance(event, Started)] == [1, 2]
    assert set(pending) == {1}, "what is missing for the target is not asked for"
    assert bench.steps_redone("scaled") == 0
    bench.assert_every_row_once(result)


@pytest.mark.variation
@pytest.mark.parametrize("kind", ["clicks", "language model"])
def test_fixed_run_moves_from_a_node_that_is_taken_back(small_nodes: SmallNodes, bench: DriverBench, kind: str) -> None:
    """The run keeps its size: there is room on other nodes. No step is lost."""
    heard, drained = Heard(), list[str]()
    make_job = bench.job if kind == "clicks" else partial(language_model_job, bench.folder, chats=CHATS)

    def drain(event: Event, control: Control) -> None:
        if not isinstance(event, Reported):
            return
        here = {member.node for member in bench.members("fixed").values()}
        if not drained and event.step >= STEPS:
            drained.append(next(node for node in small_nodes.others if node in here))
            small_nodes.announce_drain(drained[0], time.time() + 60.0)
        elif drained and drained[0] not in here and control.stop_reason is None:
            small_nodes.kill(drained[0])
            control.stop("moved")

    job = make_job("fixed", workers=2, epochs=MOST_EPOCHS, checkpoint_every=1, step_s=0.2, max_failures=0)
    result = RayTrainDriver().run(job, [heard, drain])
    assert result.stopped == "moved"
    assert [(event.node, event.workers) for event in heard if isinstance(event, Preempted)] == [(drained[0], 1)]
    assert [event.world_size for event in heard if isinstance(event, Started)] == [2, 2]
    assert result.failures == 0
    assert bench.steps_redone("fixed") == 0
    if kind == "clicks":
        bench.assert_every_row_once(result)
    else:
        assert_like_undisturbed(bench)


def assert_like_undisturbed(bench: DriverBench) -> None:
    """Assert that the language model had the rows and the losses of a run on one worker."""
    found = bench.trained("fixed")

    def stop(event: Event, control: Control) -> None:
        if isinstance(event, Reported) and event.step >= len(found):
            control.stop("enough")

    # The same number of epochs, because the learning rate follows it.
    job = language_model_job(bench.folder, "undisturbed", chats=CHATS, epochs=MOST_EPOCHS, workers=1)
    LocalDriver().run(job, [stop])
    wanted = bench.trained("undisturbed")
    assert found == {step: wanted[step] for step in found}
    losses, undisturbed = (recorded_losses(bench.folder / "rows" / name) for name in ("fixed", "undisturbed"))
    assert losses == pytest.approx({step: undisturbed[step] for step in losses}, abs=1e-5)
