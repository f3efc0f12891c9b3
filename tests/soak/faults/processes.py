"""Trainers and writers that are killed, interrupted, forked, spawned, or race each other."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from tests.soak.case import CaseOutcome, Pace, fault, patience, promised
from tests.soak.dataset import SoakSetting, draw, row_of
from tests.soak.epoch import Seen, check, epoch, take_steps
from tests.soak.guards import check_cache
from tests.soak.strikes import Dice, Hang, reads

import forebay as fb

PATIENCE_S = 40.0
ENDS_WITHIN_S = 5.0
_FORK = multiprocessing.get_context("fork")


class Child:
    """A fork of this process that runs `work` and then ends as a program ends."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._process = _FORK.Process(target=_as_program, args=(work,))
        self._process.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid or 0)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it like `kill -9`. Does nothing if it has ended."""
        self._process.kill()

    def join(self, timeout_s: float = 0.0) -> int:
        """Wait for its end. Returns the exit code, or the negative number of the signal that ended it."""
        timeout_s = timeout_s or patience(PATIENCE_S)
        self._process.join(timeout_s)
        late = self._process.is_alive()
        if late:
            self._process.kill()
            self._process.join()
        assert not late, f"a child had not ended after {timeout_s:g} s"
        code = self._process.exitcode
        self._process.close()
        return int(code)


def _as_program(work: Callable[[], object]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work()


def write_steps(setting: SoakSetting, path: Path, on_step: Callable[[int], object] = lambda step: None) -> None:
    """Train one epoch. After each step, writes a line with its ids to `path`."""
    loaders = [setting.loader(rank) for rank in range(setting.ranks)]
    iterators = [iter(loader) for loader in loaders]
    with path.open("w") as log:
        for step in range(1 << 30):
            on_step(step)
            batches = [next(rank, None) for rank in iterators]
            if batches[0] is None:
                break
            first = batches[0]
            parts = [_ids(batch) for batch in batches]
            cursor = loaders[0].cursor().to_json()
            log.write(json.dumps([first.position, first.size, parts, cursor]) + "\n")
            log.flush()
    for loader in loaders:
        loader.close()


def _ids(batch: fb.Batch) -> list[int]:
    ids = np.array(batch["id"][: batch.num_rows])
    # The parent reads ids only: the rest of a row is compared here with the content that its id demands.
    assert all(np.array_equal(batch[name][: batch.num_rows], array) for name, array in row_of(ids).items())
    return ids.tolist()


def read_steps(path: Path) -> tuple[Seen, fb.Cursor | None]:
    """Steps that `write_steps` had written when it ended, and the last cursor. A torn last line is not a step."""
    seen, cursor = Seen(), None
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if line.endswith("\n"):
            position, size, parts, text = json.loads(line)
            seen.steps.append((position, size, [row_of(np.array(ids, dtype=np.int64)) for ids in parts]))
            cursor = fb.Cursor.from_json(text)
    return seen, cursor


def wait_for_steps(path: Path, steps: int, child: Child) -> None:
    give_up = time.monotonic() + patience(PATIENCE_S)
    while child.alive and time.monotonic() < give_up:
        if path.exists() and path.read_text().count("\n") >= steps:
            return
        time.sleep(0.002)


def check_resumed(rng: random.Random, setting: SoakSetting, path: Path) -> None:
    """Continue from the last cursor, possibly with another number of ranks: both parts together are the whole epoch."""
    seen, cursor = read_steps(path)
    if cursor is None:
        check(setting, epoch(setting))
        return
    start, size = cursor.position, rng.randint(1, 3)
    if cursor.epoch > setting.epoch:
        check(setting, seen)
        return
    resumed = Seen()
    loaders = [setting.loader(rank, size) for rank in range(size)]
    for loader in loaders:
        loader.seek(cursor)
    take_steps(setting, [iter(loader) for loader in loaders], resumed)
    for loader in loaders:
        loader.close()
    check(setting, resumed, start=start, ranks=size)
    # Both parts as one epoch of one rank: positions, ids and digest.
    whole = Seen(steps=[(at, rows, [_joined(setting, at, parts)]) for at, rows, parts in seen.steps + resumed.steps])
    assert whole.steps[len(seen.steps) - 1][0] + whole.steps[len(seen.steps) - 1][1] == start
    check(setting, whole, ranks=1)


def _joined(setting: SoakSetting, position: int, parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The parts of a global batch, in position order."""
    ids = np.concatenate([part["id"] for part in parts])
    order = {row_id: at for at, row_id in enumerate(setting.ids(setting.epoch, position, 0, 1))}
    assert set(ids.tolist()) == set(order), "the ranks' parts are not the global batch"
    sort = np.argsort([order[row_id] for row_id in ids.tolist()])
    return {name: np.concatenate([part[name] for part in parts])[sort] for name in parts[0]}


@fault("kill-9-trainer", expected="equal: the steps before, and the rest from the last cursor on", quick=2)
def kill_trainer(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    path, steps = folder / "steps", rng.randrange(setting.plan.num_batches(setting.global_batch))
    delay_s = rng.random() * 0.02
    child = Child(lambda: write_steps(setting, path))
    wait_for_steps(path, steps, child)
    time.sleep(delay_s)
    child.signal(signal.SIGKILL)
    assert child.join() in (-signal.SIGKILL, 0)
    check_resumed(rng, setting, path)
    check_cache(setting)
    return CaseOutcome("equal")


@fault("kill-9-writer", expected="equal: other processes continue, half-written files are removed", quick=2)
def kill_writer(rng: random.Random, folder: Path) -> CaseOutcome:
    """One of two processes that fill a cache dies in the middle."""
    setting = draw(rng, folder, cached=True, warmth=rng.choice(["cold", "partial"]))
    blocks, temp = setting.disk.path / "blocks", setting.disk.path / "temp"
    paths = [folder / "steps-0", folder / "steps-1"]
    children = [Child(lambda path=path: write_steps(setting, path)) for path in paths]
    stored = len(list(blocks.iterdir())) + rng.randint(0, 10)
    give_up = time.monotonic() + 2
    while children[0].alive and time.monotonic() < give_up:
        if len(list(blocks.iterdir())) >= stored and (any(temp.iterdir()) or rng.random() < 0.05):
            break
    children[0].signal(signal.SIGKILL)
    assert children[0].join() in (-signal.SIGKILL, 0)
    assert children[1].join() == 0
    check(setting, read_steps(paths[1])[0])
    check_resumed(rng, setting, paths[0])
    check_cache(setting)
    return CaseOutcome("equal")


def _ended_by(
    rng: random.Random, folder: Path, number: signal.Signals, codes: set[int], *, handled: bool
) -> CaseOutcome:
    setting = draw(rng, folder)
    path, steps = folder / "steps", rng.randrange(setting.plan.num_batches(setting.global_batch))
    stuck = rng.random() < 0.3
    lucky = Dice(rng, 0.1)

    def work() -> None:
        if handled:
            signal.signal(number, lambda *_: sys.exit(128 + number))
        with Hang() as hang, reads(lambda uri: hang.wait() if stuck and lucky.hit() else None):
            write_steps(setting, path, lambda step: time.sleep(0.001))

    child = Child(work)
    give_up = time.monotonic() + 3
    while child.alive and not _has_steps(path, steps) and time.monotonic() < give_up:
        time.sleep(0.002)
    time.sleep(rng.random() * 0.05)
    start = time.monotonic()
    if child.alive:
        child.signal(number)
    with Pace() as pace:
        code = child.join(patience(PATIENCE_S))
        took_s = time.monotonic() - start
    assert took_s < promised(ENDS_WITHIN_S, pace), f"the trainer ended {took_s:.1f} s after the signal"
    assert code in codes | {0}, f"exit code {code}"
    check_resumed(rng, setting, path)
    check_cache(setting)
    return CaseOutcome("equal")


def _has_steps(path: Path, steps: int) -> bool:
    return path.exists() and path.read_text().count("\n") >= steps


@fault("sigint", expected="the trainer ends within 5 s, its exit code says so; equal from the last cursor on")
def sigint(rng: random.Random, folder: Path) -> CaseOutcome:
    # A fork of multiprocessing reports an exception, KeyboardInterrupt too, as 1.
    return _ended_by(rng, folder, signal.SIGINT, {1}, handled=False)


@fault("sigterm", expected="as above")
def sigterm(rng: random.Random, folder: Path) -> CaseOutcome:
    handled = rng.random() < 0.5
    return _ended_by(rng, folder, signal.SIGTERM, {143} if handled else {-15}, handled=handled)


_SCRIPT = """
import pickle, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a slot ignores it, and so would its children
from pathlib import Path
from tests.soak.faults.processes import write_steps
setting, path = pickle.loads(Path(sys.argv[1]).read_bytes())
write_steps(setting, path, lambda step: __import__("time").sleep(0.02))
"""


@fault("signal-to-a-program", expected="as above, for a separate program: exit code -2 or -15", share=0.1)
def signal_to_program(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    path, pickled = folder / "steps", folder / "setting"
    pickled.write_bytes(pickle.dumps((setting, path)))
    number = rng.choice([signal.SIGINT, signal.SIGTERM])
    program = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(pickled)],
        stderr=subprocess.DEVNULL,
    )
    give_up = time.monotonic() + patience(PATIENCE_S)
    while program.poll() is None and not _has_steps(path, 1) and time.monotonic() < give_up:
        time.sleep(0.01)
    program.send_signal(number)
    start = time.monotonic()
    try:
        with Pace() as pace:
            code = program.wait(patience(PATIENCE_S))
    finally:
        program.kill()
        program.wait()
    took_s = time.monotonic() - start
    assert took_s < promised(ENDS_WITHIN_S, pace), f"the program ended {took_s:.1f} s after the signal"
    assert code in (-number, 0), f"exit code {code}"
    check_resumed(rng, setting, path)
    check_cache(setting)
    return CaseOutcome("equal")


@fault(
    "fork-in-mid-read",
    expected="equal in the parent and in the child, which continues with the parent's loader",
    quick=2,
)
def fork_in_mid_read(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    waits = Dice(rng, 0.5)
    paths, started, seen = [folder / "child-0", folder / "child-1"], [], Seen()
    steps = [rng.randrange(setting.plan.num_batches(setting.global_batch)) for _ in range(rng.randint(1, 2))]
    loaders = [setting.loader(rank) for rank in range(setting.ranks)]
    iterators = [iter(loader) for loader in loaders]

    def in_child(path: Path) -> None:
        rest = Seen()
        take_steps(setting, iterators, rest)
        for loader in loaders:
            loader.close()
        path.write_bytes(pickle.dumps(rest.steps))

    def on_step(step: int) -> None:
        for path, at in zip(paths, steps, strict=False):
            if at == step:
                started.append((Child(lambda path=path: in_child(path)), path, loaders[0].cursor().position))

    with reads(lambda uri: time.sleep(0.005) if waits.hit() else None):
        take_steps(setting, iterators, seen, on_step)
    for loader in loaders:
        loader.close()
    check(setting, seen)
    for child, path, position in started:
        assert child.join() == 0, "the forked child failed"
        check(setting, Seen(steps=pickle.loads(path.read_bytes())), start=position)
    check_cache(setting)
    return CaseOutcome("equal")


def spawned_epoch(setting: SoakSetting, loaders: list[fb.Loader], path: Path) -> None:
    """Train the rest of the epoch in a new interpreter, with the loaders that were pickled into it."""
    rest = Seen()
    take_steps(setting, [iter(loader) for loader in loaders], rest)
    for loader in loaders:
        loader.close()
    path.write_bytes(pickle.dumps(rest.steps))


@fault("spawn", expected="equal: a pickled loader continues at its position", share=0.1)
def spawn(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    loaders = [setting.loader(rank) for rank in range(setting.ranks)]
    iterators = [iter(loader) for loader in loaders]
    for _ in range(rng.randrange(setting.plan.num_batches(setting.global_batch))):
        for iterator in iterators:
            next(iterator)
    position, path = loaders[0].cursor().position, folder / "spawned"
    child = multiprocessing.get_context("spawn").Process(target=spawned_epoch, args=(setting, loaders, path))
    child.start()
    rest = Seen()
    take_steps(setting, iterators, rest)
    for loader in loaders:
        loader.close()
    check(setting, rest, start=position)
    child.join(patience(PATIENCE_S))
    code = child.exitcode
    child.kill()
    child.join()
    assert code == 0, f"the spawned child ended with {code}"
    check(setting, Seen(steps=pickle.loads(path.read_bytes())), start=position)
    check_cache(setting)
    return CaseOutcome("equal")


@fault("racing-processes", expected="equal in each; a block that fits is built once, by one of them", quick=2)
def racing_processes(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, cached=True)
    number = rng.randint(2, 3)
    paths = [folder / f"steps-{client}" for client in range(number)]

    def work(path: Path) -> None:
        # An own client, as a process that was started elsewhere would have.
        mine = setting.with_disk(pickle.loads(pickle.dumps(setting.disk)))
        barrier.wait(patience(PATIENCE_S))
        seen = epoch(mine)
        path.write_bytes(pickle.dumps((seen.steps, seen.counters["stores"], seen.counters["bypasses"])))

    barrier = _FORK.Barrier(number)
    before = len(list((setting.disk.path / "blocks").iterdir()))
    children = [Child(lambda path=path: work(path)) for path in paths]
    assert [child.join() for child in children] == [0] * number
    found = [pickle.loads(path.read_bytes()) for path in paths]
    for steps, _, _ in found:
        check(setting, Seen(steps=steps))
    made = sum(stores + bypasses for _, stores, bypasses in found)
    if setting.quota == "enough":
        assert made == len(setting.plan.manifest) - before, f"{made} blocks were made, {before} were there"
    check_cache(setting)
    return CaseOutcome("equal")


@fault("racing-threads", expected="as above, for loaders in threads of one process on one `DiskCache`")
def racing_threads(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, cached=True)
    before = len(list((setting.disk.path / "blocks").iterdir()))
    found: list[Seen] = []
    threads = [threading.Thread(target=lambda: found.append(epoch(setting))) for _ in range(rng.randint(2, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(PATIENCE_S))
    assert len(found) == len(threads), "a thread failed, or did not end"
    for seen in found:
        check(setting, seen)
    made = sum(seen.counters["stores"] + seen.counters["bypasses"] for seen in found)
    if setting.quota == "enough":
        assert made == len(setting.plan.manifest) - before, f"{made} blocks were made, {before} were there"
    check_cache(setting)
    return CaseOutcome("equal")
