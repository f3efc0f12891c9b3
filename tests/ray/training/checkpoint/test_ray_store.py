"""Checkpoints in the memory of nodes.

They survive the loss of workers, stores, nodes and drivers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.actor import ActorHandle
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.ray.ending import kill
from tests.storage.conftest import free_port, s3_store, serving
from tests.unit.training.checkpoint import store_laws
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws, chunk_of, in_parts, read_in_parts
from tests.waiting import until

from forebay.data.plan.cursor import Cursor
from forebay.errors import WriteFailed
from forebay.storage.credentials import Access, without_credentials
from forebay.storage.filesystem import resolve
from forebay.testing.drivers.nodes import BARE_HEAD, STORE_BYTES, SYSTEM_CONFIG
from forebay.training.checkpoint import memory_store_actor as store_actors
from forebay.training.checkpoint import ray_store
from forebay.training.checkpoint.checkpoint import Checkpoint
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.memory_store import StoredStep
from forebay.training.checkpoint.memory_store_actor import end_stores, stored_steps, stores_of
from forebay.training.checkpoint.part_memory.actor import part_stores_of
from forebay.training.checkpoint.parts.part import PartReceipt
from forebay.training.checkpoint.ray_store import (
    RayCheckpointStore,
    checkpoint_stores,
    flush_stores,
    open_ray_checkpoints,
)
from forebay.training.checkpoint.shared_buffer import METADATA_ROOM
from forebay.world import World

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
ray.cloudpickle.register_pickle_by_value(store_laws)
PATIENCE_S = 60.0
_NODE = {"num_cpus": 2, "object_store_memory": STORE_BYTES}


def checkpoint_at(step: int, **state: Any) -> Checkpoint:
    cursor = Cursor(plan_id="9c02", epoch=1, position=10 * step, global_batch=10)
    weight = torch.arange(50_000.0) + step
    return Checkpoint(
        step=step,
        cursor=cursor,
        world=World(rank=0, size=2),
        shards={0: {"weight": weight, **state}, 1: {"part": step}},
    )


def newest_step(commits: RayCheckpointStore) -> int | None:
    found = commits.newest()
    assert found is None or found.shards[0]["weight"][0] == found.step
    return None if found is None else found.step


def save_one_and_keep_one(commits: RayCheckpointStore) -> None:
    """Save step 1 to storage, and step 2 in memory."""
    commits.save(checkpoint_at(1))
    commits.flush()
    commits.save(checkpoint_at(2))


@pytest.fixture(autouse=True)
def stores_take_their_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a busy machine more time.

    After `START_S`, checkpoints would go straight to storage.
    """
    monkeypatch.setattr(ray_store, "START_S", PATIENCE_S)


@ray.remote(num_cpus=0)
class Something:
    """Stand-in of the run's coordinator.

    It only has to be alive.
    """

    async def outlived(self) -> None:
        await asyncio.Event().wait()


@ray.remote(num_cpus=0)
class Rank0:
    """A worker on a node that the test chooses."""

    def __init__(self, run: str, config: CheckpointConfig, coordinator: ActorHandle) -> None:
        ray_store.START_S = PATIENCE_S
        self._commits = open_ray_checkpoints(run, config, coordinator)

    def save(self, *steps: int) -> int:
        for step in steps:
            self._commits.save(checkpoint_at(step))
        return os.getpid()

    def newest(self) -> int | None:
        return newest_step(self._commits)

    def save_part(self, step: int, number: int) -> PartReceipt:
        return self._commits.save_part(step, number, chunk_of(step, number))

    def seal(self, step: int, receipts: list[PartReceipt]) -> None:
        self._commits.save(in_parts(step, receipts), receipts)

    def flush(self) -> None:
        self._commits.flush()

    def save_and_die(self, step: int) -> None:
        """Die before the message about the checkpoint is sent.

        As a worker that is killed.
        """
        self._commits._store = SimpleNamespace(keep=SimpleNamespace(remote=lambda _number: None))  # type: ignore[assignment]
        self._commits.save(checkpoint_at(step))
        os.kill(os.getpid(), signal.SIGKILL)


class StorePlace:
    """One run: its name, its storage and its coordinator."""

    def __init__(self, uri: str) -> None:
        self.name = f"run-{uuid.uuid4().hex[:8]}"
        access = Access([without_credentials(uri)])
        self.config = CheckpointConfig(uri=uri, storage_every_s=1e6, keep_every=5, access=access)
        head = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.coordinator = Something.options(scheduling_strategy=head).remote()
        self._workers: list[ActorHandle] = []

    @property
    def files(self) -> CheckpointFiles:
        return CheckpointFiles(self.config)

    @property
    def held(self) -> dict[str, StoredStep]:
        return stored_steps(stores_of(self.name))

    def open(self) -> RayCheckpointStore:
        return open_ray_checkpoints(self.name, self.config, self.coordinator)

    def rank0_on(self, node: str) -> Any:
        pinned = NodeAffinitySchedulingStrategy(node, soft=False)
        worker = Rank0.options(scheduling_strategy=pinned).remote(self.name, self.config, self.coordinator)
        self._workers.append(worker)
        return worker

    def store_pid(self, node: str) -> int:
        return int(ray.get(stores_of(self.name)[node].locate.remote())[1].split("/")[2])

    def kill_store(self, node: str) -> None:
        process = os.pidfd_open(self.store_pid(node))
        signal.pidfd_send_signal(process, signal.SIGKILL)
        assert select.select([process], [], [], PATIENCE_S)[0]
        os.close(process)

    def end(self) -> None:
        for actor in (*self._workers, self.coordinator):
            ray.kill(actor)
        end_stores(self.name)


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., StorePlace]]:
    made: list[StorePlace] = []

    def make(uri: str = "") -> StorePlace:
        made.append(StorePlace(uri or str(tmp_path / "checkpoints")))
        return made[-1]

    yield make
    for place in made:
        place.end()


class StoreNodes:
    """A head node, and nodes that come and go.

    The tests run on the head.
    """

    def __init__(self) -> None:
        ray.shutdown()
        head = {**_NODE, **BARE_HEAD, "_system_config": SYSTEM_CONFIG}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        self.head: str = ray.get_runtime_context().get_node_id()
        self._others: dict[str, Any] = {}

    def add(self) -> str:
        node = self._cluster.add_node(**_NODE)
        self._others[node.node_id] = node
        until(lambda: node.node_id in store_actors.steady_nodes())
        return str(node.node_id)

    def kill(self, node_id: str) -> None:
        self._cluster.remove_node(self._others.pop(node_id), allow_graceful=False)

    def only(self, count: int) -> list[str]:
        """Keep or start exactly `count` nodes besides the head.

        Returns their ids.

        A start takes 2 CPU seconds, so tests that need equally many follow each other.
        """
        for node in list(self._others)[count:]:
            self.kill(node)
        while len(self._others) < count:
            self.add()
        until(lambda: store_actors.steady_nodes() == {self.head, *self._others})
        return list(self._others)

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreNodes]:
    nodes = StoreNodes()
    yield nodes
    nodes.close()


class TestStoredCommits(CheckpointStoreLaws):
    # About the files in storage, which are those of a local store, or in another test of this module.
    variations = frozenset(
        {
            "test_a_state_that_could_not_be_read_back_is_refused",
            "test_a_torn_upload_is_never_restored",
            "test_storage_keeps_the_last_and_the_multiples",
        }
    )

    @pytest.fixture(autouse=True)
    def one_run(self, cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
        cluster.only(0)
        self._place = make_run()

    @pytest.fixture
    def config(self) -> CheckpointConfig:
        return self._place.config

    def open(self, config: CheckpointConfig) -> RayCheckpointStore:
        return self._place.open()


def test_a_killed_worker_leaves_its_commits(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    cluster.only(0)
    run = make_run()
    worker = run.rank0_on(cluster.head)
    pid = ray.get(worker.save.remote(1, 2, 3))
    os.kill(pid, 9)
    with closing(run.open()) as commits:
        assert newest_step(commits) == 3
        commits.flush()
    assert run.files.steps()[0] == 3


def save_until_copied(save: Callable[[Checkpoint], object], step: int, run: StorePlace, node: str) -> int:
    """Save steps from `step` until `node` has a copy.

    A store that is too slow is skipped.
    """
    steps = [step]
    save(checkpoint_at(step))

    def is_copied() -> bool:
        if run.held.get(node) == StoredStep(steps[-1], is_origin=False):
            return True
        steps.append(steps[-1] + 1)
        save(checkpoint_at(steps[-1]))
        return False

    until(is_copied)
    return steps[-1]


@pytest.mark.parametrize(
    ("has_opened_it", "lost_with"),
    [
        pytest.param(True, "checkpoints is lost (Actor", id="in-a-slot-it-had-opened"),
        pytest.param(False, "checkpoints is lost (FileNotFoundError)", id="in-a-new-slot"),
    ],
)
def test_a_store_that_is_killed_is_noticed_by_the_very_next_commit(
    cluster: StoreNodes,
    make_run: Callable[..., StorePlace],
    caplog: pytest.LogCaptureFixture,
    has_opened_it: bool,
    lost_with: str,
) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        assert commits.newest() is None
        commits.save(checkpoint_at(1))
        commits.save(checkpoint_at(2))
        assert commits._open_buffer()[0] is not None, "as it will have been answered when the next step is over"
        if not has_opened_it:
            assert commits._client is not None
            commits._client._writers.clear()
        run.kill_store(cluster.head)
        commits.save(checkpoint_at(3))
        assert run.files.steps()[0] == 3
        assert lost_with in caplog.text


def test_a_killed_store_is_made_again_and_commits_go_to_storage_meanwhile(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        commits.save(checkpoint_at(1))
        commits.save(checkpoint_at(2))
        run.kill_store(cluster.head)
        commits.save(checkpoint_at(3))
        assert "The memory of this node for checkpoints is lost" in caplog.text
        assert run.files.steps()[0] == 3, "straight to storage"
        assert newest_step(commits) == 3
        steps = iter(range(4, 1000))
        until(lambda: commits.save(checkpoint_at(next(steps))) or run.held)
        last = next(steps) - 1
        assert run.held == {cluster.head: StoredStep(last, is_origin=True)}
        assert newest_step(commits) == last
        run.kill_store(cluster.head)
        commits.flush()
        assert run.files.steps()[0] == last, "a flush needs no store either"


def test_a_worker_that_is_killed_before_it_told_of_its_commit_leaves_it(
    cluster: StoreNodes, make_run: Callable[..., StorePlace]
) -> None:
    (other,) = cluster.only(1)
    run = make_run()
    worker = run.rank0_on(cluster.head)
    ray.get(worker.save.remote(1, 2))
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(worker.save_and_die.remote(3))
    with closing(run.open()) as commits:
        assert newest_step(commits) == 3
        last = save_until_copied(commits.save, 4, run, other)
    worker = run.rank0_on(cluster.head)
    assert ray.get(worker.newest.remote()) == last
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(worker.save_and_die.remote(last + 1))
    flush_stores(run.name)
    assert run.files.steps()[0] == last + 1


def test_a_killed_node_takes_one_commit_along_at_most(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    (other,) = cluster.only(1)
    run = make_run()
    worker = run.rank0_on(other)
    ray.get(worker.save.remote(1))
    ray.get(worker.flush.remote())
    ray.get(worker.save.remote(6, 7, 8, 9))
    cluster.kill(other)
    with closing(run.open()) as commits:
        found = newest_step(commits)
        assert found in (8, 9)
        assert {1} <= set(run.files.steps()) <= {1, found}, "from memory, or brought to storage from there"
        commits.save(checkpoint_at(found + 1))
        assert newest_step(commits) == found + 1


def test_when_all_nodes_are_lost_storage_is_left(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        for step in range(1, 5):
            commits.save(checkpoint_at(step))
            if step == 3:
                flush_stores(run.name)
    for store in stores_of(run.name).values():
        ray.kill(store)
    until(lambda: not stores_of(run.name))
    with closing(run.open()) as commits:
        assert newest_step(commits) == 3


def test_a_torn_upload_is_not_restored_nor_a_torn_memory(
    cluster: StoreNodes, make_run: Callable[..., StorePlace]
) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        save_one_and_keep_one(commits)
        shown = ray.get(stores_of(run.name)[cluster.head].locate.remote())
        with Path(shown[1]).open("r+b") as memory:
            memory.seek(METADATA_ROOM + 1000)
            memory.write(b"flipped")
        assert newest_step(commits) == 1


@contextmanager
def silent_for(seconds: float, run: StorePlace, node: str) -> Iterator[None]:
    """The store of a node falls silent.

    Its process and its node live.
    """
    pid = run.store_pid(node)

    def wake() -> None:
        with suppress(ProcessLookupError):  # it was given up
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    waking = threading.Timer(seconds, wake)
    waking.start()
    try:
        yield
    finally:
        waking.cancel()
        wake()


def test_a_store_that_is_silent_for_a_while_is_waited_for(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_actors, "ANSWER_S", 1.0)
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        save_one_and_keep_one(commits)
        with silent_for(2 * store_actors.ANSWER_S, run, cluster.head):
            assert newest_step(commits) == 2
        assert run.files.steps() == [1]
        with silent_for(2 * store_actors.ANSWER_S, run, cluster.head):
            end_stores(run.name)
        assert run.files.steps()[0] == 2


def test_a_store_that_is_stuck_does_not_hold_its_worker_for_long(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.only(0)
    run = make_run()
    run.config = replace(run.config, store_timeout_s=1.0)
    with closing(run.open()) as commits:
        steps = iter(range(1, 10_000))
        until(lambda: commits.save(checkpoint_at(next(steps))) or run.held)
        with silent_for(25.0, run, cluster.head):
            commits.save(checkpoint_at(10_001))
            commits.save(checkpoint_at(10_002))
            assert run.files.steps()[0] == 10_002
    assert "checkpoints is lost (GetTimeoutError)" in caplog.text


@pytest.fixture
def never() -> Iterator[Any]:
    """Reference that is never ready."""
    nowhere = Something.options(resources={"nowhere": 1}).remote()
    yield nowhere.__ray_ready__.remote()
    ray.kill(nowhere)


def test_a_store_that_is_late_keeps_its_commit_until_the_next_is_in_storage_and_touches_that_no_more(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        save_one_and_keep_one(commits)
    run.config = replace(run.config, store_timeout_s=0.3)
    with closing(run.open()) as commits:
        assert newest_step(commits) == 2
        assert commits._wait_s == 0.3
        commits._pending = never
        with monkeypatch.context() as storage:
            storage.setattr(CheckpointFiles, "write", _refuse)
            with pytest.raises(WriteFailed):
                commits.save(checkpoint_at(3))
        assert run.held[cluster.head].step == 2, "it has the last one that was saved"
        commits._pending = never
        commits.save(checkpoint_at(3))
        commits.flush()
        assert run.files.steps()[0] == 3
    end_stores(run.name)
    assert run.files.steps()[0] == 3


def _refuse(_files: CheckpointFiles, _sealed: object) -> None:
    raise PermissionError("not yours")


def test_a_store_that_dies_before_it_took_a_commit_that_is_to_stay(
    cluster: StoreNodes, make_run: Callable[..., StorePlace]
) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        for step in (1, 2):
            commits.save(checkpoint_at(step))
        assert commits._next_handle() is not None
        pid = run.store_pid(cluster.head)
        os.kill(pid, signal.SIGSTOP)
        commits.save(checkpoint_at(5))
        os.kill(pid, signal.SIGKILL)
        commits.save(checkpoint_at(6))
    assert run.files.complete_steps()[:2] == [6, 5]


def test_what_a_store_does_not_show_in_time_is_lost(
    cluster: StoreNodes, never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_store, "READ_S", 0.1)
    answer: Any = SimpleNamespace(remote=lambda *_: never)
    store: Any = SimpleNamespace(locate=answer, fetch=answer)
    for is_here in (True, False):
        with pytest.raises(CorruptCheckpoint, match="GetTimeoutError"):
            ray_store._read(store, 1000, None, step=1, is_here=is_here)


def test_an_orphan_ends_itself(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    cluster.only(0)
    run = make_run()
    worker = run.rank0_on(cluster.head)
    ray.get(worker.save.remote(1))
    kill(run.coordinator)
    end_stores(run.name)  # as the next driver of this name does
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(worker.save.remote(2, 3))
    assert run.files.steps() == [1]
    assert not stores_of(run.name)


def test_storage_that_refuses_is_named_at_a_flush(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], tmp_path: Path
) -> None:
    cluster.only(0)
    (tmp_path / "a-file").write_text("no folder")
    run = make_run(str(tmp_path / "a-file" / "checkpoints"))
    worker = run.rank0_on(cluster.head)
    ray.get(worker.save.remote(1, 2))
    with pytest.raises(WriteFailed, match=r"a-file/checkpoints .*Check that the storage answers"):
        ray.get(worker.flush.remote())
    assert run.held == {cluster.head: StoredStep(2, is_origin=True)}


def test_s3_with_credentials_in_its_uri(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], tmp_path: Path
) -> None:
    cluster.only(0)
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, tmp_path / "moto.log"):
        store = s3_store(port)
        resolve(store.uri("")).fs.create_dir("bucket")
        run = make_run(store.uri("run/checkpoints"))
        worker = run.rank0_on(cluster.head)
        ray.get(worker.save.remote(1, 2, 3))
        ray.get(worker.flush.remote())
        assert run.files.steps()[0] == 3
        ray.get(worker.save.remote(4))
        end_stores(run.name)
        files = run.files
        files._write(f"{files._folder(9)}/shard-00000.pt", b"an upload that was cut short")
        with closing(run.open()) as commits:
            assert newest_step(commits) == 4
        end_stores(run.name)


def test_a_node_that_comes_later_has_the_copy(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    cluster.only(0)
    run = make_run()
    with closing(run.open()) as commits:
        commits.save(checkpoint_at(1))
        late = cluster.add()
        steps = iter(range(2, 10_000))
        until(lambda: commits.save(checkpoint_at(next(steps))) or late in run.held)
        assert not run.held[late].is_origin and run.held[cluster.head].is_origin
    worker = run.rank0_on(late)
    assert ray.get(worker.newest.remote()) == next(steps) - 1
    last = save_until_copied(lambda commit: ray.get(worker.save.remote(commit.step)), 20_000, run, cluster.head)
    assert run.held == {late: StoredStep(last, is_origin=True), cluster.head: StoredStep(last, is_origin=False)}


def test_a_draining_neighbour_is_left(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    first, second = cluster.only(2)
    run = make_run()
    with closing(run.open()) as commits:
        for step in (1, 2, 3):
            commits.save(checkpoint_at(step))
        (neighbour,) = run.held.keys() - {cluster.head}
        drain(neighbour)
        stays = second if neighbour == first else first
        steps = iter(range(4, 10_000))
        until(
            lambda: (
                commits.save(checkpoint_at(next(steps))) or time.sleep(0.05) or set(run.held) == {cluster.head, stays}
            )
        )
    cluster.kill(neighbour)


def drain(node_id: str) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, told = client.drain_node(node_id, reason, "a test", int(time.time() * 1000) + 600_000)
    assert accepted, told


def test_stores_follow_the_coordinator_and_leave_the_newest_in_storage(
    cluster: StoreNodes, make_run: Callable[..., StorePlace]
) -> None:
    cluster.only(1)
    run = make_run()
    with closing(run.open()) as commits:
        for step in range(1, 7):
            commits.save(checkpoint_at(step))
        until(lambda: len(run.held) == 2)
    ray.kill(run.coordinator)
    until(lambda: not stores_of(run.name))
    assert run.files.steps()[0] == 6
    run.files.read(6).verify()


def test_a_driver_ends_all_stores_before_and_after(cluster: StoreNodes, make_run: Callable[..., StorePlace]) -> None:
    cluster.only(1)
    run = make_run()
    left = run.open()
    left.save(checkpoint_at(1))
    left.save(checkpoint_at(2))
    with checkpoint_stores(run.name, run.config):
        until(lambda: not stores_of(run.name))
        assert run.files.steps()[0] == 2
        with closing(run.open()) as commits:
            assert newest_step(commits) == 2
            commits.save(checkpoint_at(3))
    until(lambda: not stores_of(run.name))
    assert run.files.steps()[0] == 3


class SlowToTravel(CheckpointConfig):
    """A config whose store takes 1 s to create."""

    def __reduce__(self) -> Any:
        time.sleep(1.0)
        return partial(SlowToTravel, uri=self.uri, storage_every_s=self.storage_every_s, access=self.access), ()


def test_no_store_is_left_that_another_was_just_making(
    cluster: StoreNodes, make_run: Callable[..., StorePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.only(1)
    run = make_run()
    kept = run.config
    run.config = SlowToTravel(uri=kept.uri, storage_every_s=kept.storage_every_s, access=kept.access)
    kill, most = ray.kill, [1]

    def kill_late(store: ActorHandle) -> None:
        # The kill takes effect some time later: the other store may have started before.
        until(lambda: most.append(len(stores_of(run.name))) or max(most) == 2)
        kill(store)

    with closing(run.open()) as commits:
        commits.newest()
        until(lambda: commits._next_handle() is not None)
        commits.save(checkpoint_at(1))  # whose copy needs a store on the other node
    monkeypatch.setattr(ray, "kill", kill_late)
    end_stores(run.name)
    monkeypatch.undo()
    time.sleep(1.0)
    assert not stores_of(run.name)


def test_parts_outlive_a_node_and_the_checkpoint_before_outlives_the_loss_of_one(
    cluster: StoreNodes, make_run: Callable[..., StorePlace]
) -> None:
    """Rank 0 is on the head, rank 1 on a lost node.

    A third node has copies. Storage has the first step.
    """
    lost, _spare = cluster.only(2)
    run = make_run()
    first, second = run.rank0_on(cluster.head), run.rank0_on(lost)

    def save(step: int) -> list[PartReceipt]:
        wrote = [first.save_part.remote(step, 1), second.save_part.remote(step, 2), first.save_part.remote(step, 3)]
        receipts: list[PartReceipt] = ray.get(wrote)
        ray.get(first.seal.remote(step, receipts))
        return receipts

    assert ray.get(first.newest.remote()) is None
    for step in (1, 2, 3):
        receipts = save(step)
        if step == 1:
            until(lambda: run.files.complete_steps() == [1])
    other_nodes = [store for node, store in part_stores_of(run.name).items() if node != lost]
    facts = receipts[1].facts
    until(lambda: any(ray.get([store.locate.remote(3, facts) for store in other_nodes])))
    cluster.kill(lost)
    with closing(run.open()) as commits:
        assert rows_of(commits, None) == (3, [31.0, 32.0, 33.0]), "part 2 is read from its copy"
    receipts = [*ray.get([first.save_part.remote(4, 1), first.save_part.remote(4, 2), first.save_part.remote(4, 3)])]
    ray.get(first.seal.remote(4, [receipts[0], replace(receipts[1], sums=(1,)), receipts[2]]))
    with closing(run.open()) as commits:
        with pytest.raises(CorruptCheckpoint, match="part 2"):
            rows_of(commits, None)
        assert rows_of(commits, 4) == (3, [31.0, 32.0, 33.0]), "kept in memory until the next is complete"
        for store in part_stores_of(run.name).values():
            kill(store)
        with pytest.raises(CorruptCheckpoint, match="part 1"):
            rows_of(commits, 4)
        assert rows_of(commits, 3) == (1, [11.0, 12.0, 13.0]), "in storage"


def rows_of(commits: RayCheckpointStore, before: int | None) -> tuple[int, list[float]]:
    """Step and tensor of the newest checkpoint before `before`.

    The first column of the tensor, which lies in three parts.
    """
    found = commits.newest({0}, before=before)
    assert found is not None
    return found.step, read_in_parts(commits, found)["rows"][:, 0].tolist()
