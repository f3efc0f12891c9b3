"""Nodes are lost, with the trainers on them or with the blocks that other nodes request."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayError
from tests.ray.faults.actor_faults import damage
from tests.ray.faults.cluster import PATIENCE_S, alive, here, until
from tests.ray.faults.stage import is_running, staged, striking
from tests.ray.faults.trainer import Journal, train_on
from tests.ray.faults.trainer_faults import rest_of
from tests.soak.case import CaseOutcome, fault
from tests.soak.epoch import clear_error, compare, epoch

import forebay as fb
from forebay.data.cache.node import client as node
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters


def _take_away(rng: random.Random, node_id: str) -> None:
    if rng.random() < 0.5:
        here().kill_raylet(node_id)
    else:
        here().remove(node_id)


@fault(
    "ray-node-lost-under-trainer",
    expected="equal: continues at its cursor, on another node",
    group="ray",
    deadline_s=240,
    share=0.2,
)
def node_lost_under_trainer(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, own_disks=rng.random() < 0.5) as stage:
        doomed, other = here().others
        journal = Journal(folder / "journal")
        task = train_on(doomed, stage.setting, journal.folder, pause_s=0.05)
        until(lambda: len(journal) > rng.randint(0, 3), "a trainer at work")
        _take_away(rng, doomed)
        with suppress(RayError):
            ray.get(task, timeout=PATIENCE_S)
        until(lambda: not is_running(journal.pid()), "the end of the trainer")
        return compare(stage.setting, lambda: rest_of(stage.setting, journal, rng.choice([other, here().head])))


@fault(
    "ray-peer-lost",
    expected="equal: blocks that a peer does not send are read from the source",
    group="ray",
    deadline_s=240,
    share=0.3,
)
def peer_lost(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, own_disks=True, warmth="cold", quota="enough", drag_s=0.01) as stage:
        peer = here().others[0]
        pid = stage.start_actor(peer)
        ray.get(train_on(peer, stage.setting, folder / "journal"), timeout=PATIENCE_S)
        held = len(list((Path(stage.setting.cache.spec(peer).path) / "blocks").iterdir()))
        assert held == len(stage.setting.plan.manifest), "the peer holds not all of the blocks"
        name, strike = _blow(rng, peer, pid, stage.setting.cache.spec(peer).open())
        with striking(rng, 1, rng.choice([0.01, 0.3]), strike):
            outcome = compare(stage.setting, lambda: epoch(stage.setting))
        outcome.detail = name
        stage.setting.cache.spec(peer).open().verify()  # finds damage that no reader met
        return outcome


def _blow(rng: random.Random, peer: str, pid: int, disk: fb.DiskCache) -> tuple[str, Callable[[], object]]:
    """Name of the blow to the peer, and the function that strikes it."""
    dice = random.Random(rng.random())

    def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(rng.choice([0.5, 7.0]))
        os.kill(pid, signal.SIGCONT)

    return rng.choice(
        [
            ("raylet killed", lambda: here().kill_raylet(peer)),
            ("node removed", lambda: here().remove(peer)),
            ("actor killed", lambda: os.kill(pid, signal.SIGKILL)),
            ("actor stopped", pause),
            ("blocks damaged", lambda: [damage(dice, disk) for _ in range(20)]),
            ("blocks removed", lambda: shutil.rmtree(disk.path / "blocks")),
            ("blocks cleared", disk.clear),
        ]
    )


@fault(
    "ray-node-lost-under-warming",
    expected="CacheUnusable naming the node",
    group="ray",
    deadline_s=240,
    share=0.1,
)
def node_lost_under_warming(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, own_disks=True, warmth="cold", quota="enough", drag_s=0.1) as stage:
        doomed = here().others[0]
        client = node.NodeCacheClient(stage.setting.cache.spec(doomed), doomed, is_here=False)
        source = client.source(stage.setting.dataset, Counters())
        try:
            futures = [source.request(index) for index in range(len(stage.setting.plan.manifest))]
            time.sleep(rng.uniform(0, 0.5))
            here().kill_raylet(doomed)
            until(lambda: doomed not in alive(), "Ray to notice")
            try:
                for future in futures:
                    future.result(90)
            except CacheUnusable as error:
                return clear_error(error, doomed)
            return CaseOutcome("equal", "all were made before")
        finally:
            source.close()
