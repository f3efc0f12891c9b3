"""Trainers die and continue elsewhere, race each other, or fill the object store."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.exceptions import WorkerCrashedError
from tests.ray.faults.cluster import PATIENCE_S, here, living, until
from tests.ray.faults.driver import FaultDriver
from tests.ray.faults.faulty import FaultOrders
from tests.ray.faults.stage import is_running, staged
from tests.ray.faults.trainer import Journal, train, train_on
from tests.soak.case import CaseOutcome, fault
from tests.soak.dataset import SoakSetting, row_of
from tests.soak.epoch import Seen, check, compare, epoch, take_steps

import forebay as fb
from forebay.data.cache.block_key import BlockNames
from forebay.errors import TransformFailed
from forebay.storage.file_lock import try_lock
from forebay.testing.drivers.nodes import STORE_BYTES


@fault(
    "ray-trainer-killed",
    expected="equal: continues at its cursor, on another node",
    group="ray",
    deadline_s=240,
    share=0.3,
)
def trainer_killed(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, drag_s=0.01) as stage:
        journal = Journal(folder / "journal")
        task = train_on(here().others[0], stage.setting, journal.folder, pause_s=0.05)
        until(lambda: len(journal) > rng.randint(0, 3), "a trainer at work")
        kill_trainer(journal, task)
        return compare(stage.setting, lambda: rest_of(stage.setting, journal, here().others[1]))


def kill_trainer(journal: Journal, task: Any) -> None:
    """End the trainer's process, unless it has just finished."""
    with suppress(ProcessLookupError):
        os.kill(journal.pid(), signal.SIGKILL)
    with suppress(WorkerCrashedError):
        ray.get(task, timeout=PATIENCE_S)
    until(lambda: not is_running(journal.pid()), "the end of the trainer")


def rest_of(setting: SoakSetting, journal: Journal, node_id: str) -> Seen:
    """Content of the journal after a trainer on the node has trained to the end of the epoch."""
    ray.get(train_on(node_id, setting, journal.folder), timeout=PATIENCE_S)
    return journal.seen()


@fault("ray-two-trainers-race", expected="equal, both", group="ray", deadline_s=240, share=0.3)
def two_trainers_race(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder) as stage:
        node_id = rng.choice([here().head, *here().others])
        journals = [Journal(folder / f"journal-{number}") for number in range(2)]
        tasks = [train_on(node_id, stage.setting, journal.folder, rng.choice([0, 0.01])) for journal in journals]
        check(stage.setting, epoch(stage.setting))
        ray.get(tasks, timeout=PATIENCE_S)
        for journal in journals:
            check(stage.setting, journal.seen())
        return CaseOutcome("equal")


@fault(
    "ray-driver-terminated",
    expected="equal: the next driver continues; no lease, no process is left",
    group="ray",
    deadline_s=240,
    share=0.1,
)
def driver_terminated(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, drag_s=0.01) as stage:
        stage.start_actor(here().head)
        journal, number = Journal(folder / "journal"), rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
        with FaultDriver(here().address, stage.setting, journal) as driver:
            until(lambda: len(journal) > 1 or driver.has_ended, "a driver at work")
            driver.signal(number)
            until(lambda: driver.has_ended, f"the end of the driver after signal {number}")
            if not driver.returncode:  # it finished before the signal came: few batches, and a slow machine
                return compare(stage.setting, journal.seen)
        _nobody_uses(stage.local)
        left = [name for name in living() if not name.startswith("actor forebay-cache-")]
        assert not left, f"left by the driver: {left}"
        train(stage.setting, journal.folder, 0.0)
        return compare(stage.setting, journal.seen)


def _nobody_uses(local: SoakSetting) -> None:
    """Assert that the dataset may be evicted."""
    path = local.disk._directory.use_lock(BlockNames(local.dataset).dataset)

    def is_free() -> bool:
        lock = try_lock(path)
        if lock:
            lock.release()
        return lock is not None

    until(is_free, "the end of the lease")


def raising(setting: SoakSetting, orders: FaultOrders) -> fb.Transform:
    """The usual arrays, from a function that raises once for each order "raise"."""

    def usual_unless_ordered(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        if orders.take("raise") is not None:
            raise ZeroDivisionError("division by zero in the transform")
        return row_of(np.asarray(batch.column("id")))

    return fb.Transform(fn=usual_unless_ordered, version="1")


@fault(
    "ray-transform-raises",
    expected="TransformFailed with the place; equal from the cursor on",
    group="ray",
    deadline_s=240,
    share=0.3,
)
def transform_raises(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold", transform=raising) as stage:
        stage.orders.give("raise", 1)
        journal = Journal(folder / "journal")
        with pytest.raises(TransformFailed, match="division by zero") as raised:
            train(stage.setting, journal.folder, 0.0)
        assert "usual_unless_ordered" in str(raised.value.__cause__), "the place in the transform is not told"
        train(stage.setting, journal.folder, 0.0)
        check(stage.setting, journal.seen())
        return CaseOutcome("error", "TransformFailed")


def widening(setting: SoakSetting, orders: FaultOrders) -> fb.Transform:
    """The usual arrays with wider rows, so that an epoch is three times as large as the object store."""
    width = 3 * STORE_BYTES // setting.plan.num_rows // 8

    def widen(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        ids = np.asarray(batch.column("id"))
        return {**row_of(ids), "wide": np.repeat(ids[:, None], width, axis=1)}

    return fb.Transform(fn=widen, version="1")


@fault(
    "ray-object-store-full",
    expected="equal: a full store spills to disk",
    group="ray",
    deadline_s=240,
    share=0.1,
)
def object_store_full(rng: random.Random, folder: Path) -> CaseOutcome:
    with staged(rng, folder, warmth="cold", quota="short", transform=widening) as stage:
        ballast = [ray.put(np.zeros(8 << 20, np.uint8)) for _ in range(rng.randint(0, 8))]
        outcome = compare(stage.setting, lambda: _wide_epoch(stage.setting))
        del ballast
        return outcome


def _wide_epoch(setting: SoakSetting) -> Seen:
    """An epoch whose wide column is checked, and not kept."""
    seen = Seen()
    with ExitStack() as opened:
        loaders = [opened.enter_context(setting.loader(rank)) for rank in range(setting.ranks)]

        def check_wide(step: int) -> None:
            for part in seen.steps[step - 1][2] if step else ():
                wide = part.pop("wide")
                assert np.array_equal(wide, np.repeat(part["id"][:, None], wide.shape[1], axis=1)), f"step {step - 1}"

        take_steps(setting, [iter(loader) for loader in loaders], seen, check_wide)
    return seen
