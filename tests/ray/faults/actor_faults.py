"""The cache actor dies, hangs, or has its disk changed, in the middle of an epoch."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.ray.faults.cluster import here, until
from tests.ray.faults.stage import Stage, staged, striking, timed
from tests.soak.case import CaseOutcome, fault, promised
from tests.soak.epoch import check, compare, epoch

import forebay as fb
from forebay.data.cache.node import client as node
from forebay.errors import CacheUnusable, LoaderClosed
from forebay.ray_cluster import actors


@fault("ray-cache-actor-killed", expected="equal: the actor is started again", group="ray", deadline_s=240, share=0.3)
def cache_actor_killed(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, drag_s=rng.uniform(0, 0.1)) as stage:
        first, times = rng.random() < 0.5, rng.randint(1, 3)

        def on_step(step: int) -> None:
            if step == 1 and first:
                stage.signal_actor()

        with striking(rng, times, 1.0, stage.signal_actor):
            return compare(stage.setting, lambda: epoch(stage.setting, on_step))


@fault(
    "ray-cache-actor-killed-writing",
    expected="equal: a half-written block is never served",
    group="ray",
    deadline_s=240,
    share=0.3,
)
def cache_actor_killed_writing(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold", quota="enough") as stage:
        stage.orders.give("die-writing", rng.randint(1, 3))
        outcome = compare(stage.setting, lambda: epoch(stage.setting))
        assert not stage.orders.left("die-writing") and len(stage.orders.pids()) > 1
        return outcome


@fault(
    "ray-cache-actor-keeps-dying",
    expected="CacheUnusable naming the row group, after five deaths",
    quick=0,
    group="ray",
    deadline_s=240,
    share=0.1,
)
def cache_actor_keeps_dying(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold", quota="enough") as stage:
        stage.orders.give("die-writing", 500)
        return compare(stage.setting, lambda: epoch(stage.setting), CacheUnusable, names=".parquet")


@fault("ray-cache-actor-stopped", expected="equal, once it continues", group="ray", deadline_s=240, share=0.3)
def cache_actor_stopped(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, drag_s=rng.uniform(0.01, 0.1)) as stage:

        def stop() -> None:
            stage.signal_actor(signal.SIGSTOP)
            time.sleep(rng.uniform(0.2, 3))
            stage.signal_actor(signal.SIGCONT)

        with striking(rng, 1, 0.5, stop):
            return compare(stage.setting, lambda: epoch(stage.setting))


@fault(
    "ray-cache-actor-stuck",
    expected="CacheUnusable naming the actor, after a time",
    group="ray",
    deadline_s=240,
    share=0.2,
)
def cache_actor_stuck(rng: random.Random, folder: Path) -> CaseOutcome:
    with pytest.MonkeyPatch.context() as patch, staged(rng, folder, warmth="cold", drag_s=0.05) as stage:
        stage.start_actor(here().head)  # which may take longer than the silence allowed to a running actor here
        patch.setattr(actors, "_PING_S", 0.5)
        patch.setattr(node, "_SILENT_S", 3.0)
        with striking(rng, 1, 0.2, lambda: stage.signal_actor(signal.SIGSTOP)):
            return compare(stage.setting, lambda: epoch(stage.setting), CacheUnusable, names="forebay-cache-")


@fault("ray-close-while-stuck", expected="close(5) returns within 5 s", group="ray", deadline_s=240, share=0.3)
def close_while_stuck(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold") as stage:
        stage.orders.always("never")
        loader = stage.setting.loader()
        batches = iter(loader)

        def wait() -> None:
            with pytest.raises(LoaderClosed):
                next(batches)

        with striking(rng, 1, 0.0, wait):
            until((stage.orders.folder / "stuck").exists, "a read that is stuck")
            if rng.random() < 0.5:
                stage.signal_actor(signal.SIGSTOP)
            took_s = timed(lambda: loader.close(5))
        assert took_s < promised(6.0), f"close(5) took {took_s:.1f} s"
        stage.orders.call_off("never")
        return CaseOutcome("equal")


@fault(
    "ray-storage-stuck", expected="equal: a read without an answer is replaced", group="ray", deadline_s=240, share=0.3
)
def storage_stuck(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold") as stage:
        stage.orders.always("impatient")
        stage.orders.give("never", rng.randint(1, 3))
        return compare(stage.setting, lambda: epoch(stage.setting))


@fault("ray-storage-slow", expected="equal, later", group="ray", deadline_s=240, share=0.3)
def storage_slow(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold") as stage:
        stage.orders.give("slow", rng.randint(1, 3), rng.choice([0.5, 1.5, 12.0]))
        return compare(stage.setting, lambda: epoch(stage.setting))


@fault("ray-block-damaged", expected="equal: found, set aside, built again", group="ray", deadline_s=240, share=0.3)
def block_damaged(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth=rng.choice(["warm", "partial"]), drag_s=0.02) as stage:
        dice = random.Random(rng.random())
        with striking(rng, rng.randint(1, 8), 0.1, lambda: damage(dice, stage.local.disk)):
            outcome = compare(stage.setting, lambda: epoch(stage.setting, lambda step: damage(dice, stage.local.disk)))
        stage.local.disk.verify()  # finds damage that no reader met
        return outcome


def damage(dice: random.Random, disk: fb.DiskCache) -> None:
    """Flip a bit of a block or cut off its end, in a new file: a file that a trainer has mapped must stay whole."""
    blocks = sorted((disk.path / "blocks").glob("*.block"))
    if not blocks:
        return
    path = dice.choice(blocks)
    try:
        content = bytearray(path.read_bytes())
    except FileNotFoundError:
        return
    if not content:  # all of it was cut off before
        return
    if dice.random() < 0.5:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    else:
        del content[dice.randrange(len(content)) :]
    new = disk.path.parent / f"damaged-{dice.random()}"
    new.write_bytes(content)
    if path.exists():
        new.replace(path)


@fault("ray-cache-folder-deleted", expected="equal, or CacheUnusable", group="ray", deadline_s=240, share=0.3)
def cache_folder_deleted(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, drag_s=rng.uniform(0, 0.05)) as stage:
        doomed = stage.local.disk.path if rng.random() < 0.5 else stage.local.disk.path / "blocks"
        with striking(rng, 1, 0.5, lambda: shutil.rmtree(doomed, ignore_errors=True)):
            outcome = compare(
                stage.setting, lambda: epoch(stage.setting), CacheUnusable, names=str(stage.local.disk.path)
            )
        check(stage.local, epoch(stage.local.with_disk(None)))
        return outcome


@fault("ray-quota-shrunk", expected="equal: the newest job's quota counts", group="ray", deadline_s=240, share=0.3)
def quota_shrunk(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold", quota="enough", drag_s=rng.uniform(0, 0.05)) as stage:
        quota_bytes = rng.choice([1, 1 << 18, 1 << 19])

        def shrink() -> None:
            node.attach(_with_quota(stage, quota_bytes))

        with striking(rng, 1, 1.0, shrink):
            return compare(stage.setting, lambda: epoch(stage.setting))


def _with_quota(stage: Stage, quota_bytes: int) -> node.CacheSpec:
    spec = stage.setting.cache.spec()
    return node.CacheSpec(path=spec.path, quota_bytes=quota_bytes, min_free_bytes=0)
