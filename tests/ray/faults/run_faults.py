"""Runs on Ray whose drivers, workers, actors, raylets and nodes are struck, many times each, also several at once.

A case is one long run of a tiny model on four nodes. Each strike waits for a moment of the run: steps, a commit, an
upload, a resize, a takeover; or it comes at once, and falls into what the one before has left.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.node import Node
from tests.ray.faults.cluster import FOUR, PATIENCE_S, here, living, until
from tests.ray.faults.drivers import TAKEOVER_S, DriverServer, drive
from tests.ray.faults.stage import check_object_store
from tests.ray.faults.targets import (
    CACHE,
    CONTROLLER,
    COORDINATOR,
    PART_STORES,
    STORES,
    WORKERS,
    Agenda,
    descendants,
    freeze,
    send,
    starve,
    titled,
)
from tests.soak.case import AT_END, CannotStage, CaseOutcome, fault, patience
from tests.soak.faults.runs import NAME, judge
from tests.soak.guards import shared_memory
from tests.soak.siege import CODES, FENCED_CODE

from forebay.data.cache.node.actor import NAMESPACE
from forebay.errors import ExitCode
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.events import ATTEMPTS, StepAttempt
from forebay.training.checkpoint.config import FOLDER
from forebay.training.driver.elastic import client
from forebay.training.job.elastic import Elastic

LEAST_STRIKES, MOST_STRIKES = 60, 160
MOST_S, END_S, LIMIT_S = 150.0, 120.0, 400.0
"""A run is struck no more after the first time, and has ended the second one later."""
QUIET_S = 5.0
"""Longest wait for a moment. Without it, the strike comes then."""
MOST_IN_RESTART, RECOVERS_S, LAST_STEPS = 12, 20.0, 12
"""Strikes without a step between them, then the wait for one. Steps that a run must make once it is left alone."""
POLL_S = 0.004
SEVERE = 0.4
FREEZES_S = (0.3, 1.0, 3.0, 8.0)
RAYLET_FREEZES_S = (0.3, 1.0, 3.0, 14.0)
"""Ray gives a node up that is silent for ten seconds."""
DRIVER_CODES = (*CODES, ExitCode.TERMINATED, signal.SIGTERM, -signal.SIGTERM)
"""After SIGTERM, a program ends with Forebay's code, while it connects to Ray with Ray's 15, before by the signal."""
ELASTIC = Elastic(min_workers=1, max_workers=3, start=2)

Harm = Callable[[], bool]
_servers: list[DriverServer] = []
_healer = ThreadPoolExecutor(1)


class RunSiege:
    """Drivers of one run, one after another or two at a time, and the strikes on all that belongs to it."""

    def __init__(self, rng: random.Random, driver: str, bench: DriverBench, options: dict[str, Any]) -> None:
        self._rng, self._driver, self._bench = rng, driver, bench
        self._every, self._uploads = int(options["checkpoint_every"]), options["storage_every_s"] < QUIET_S
        self._has_parts = "strategy" in options
        self._work = partial(drive, driver, bench.folder, bench.order, here().address, rng.random() < 0.3, options)
        self._agenda, self._healing = Agenda(), Future[None]()
        self._healing.set_result(None)
        self._drivers: dict[int, Path] = {}
        self._read = self._started = self._without_steps = 0
        self.struck: Counter[str] = Counter()
        self.codes: list[int] = []

    def endure(self, strikes: int, most_s: float, end_s: float) -> None:
        """Start the run, strike it until it was struck enough, and see it end."""
        self._start()
        until_s = time.monotonic() + most_s
        while self.struck.total() < strikes and time.monotonic() < until_s and 0 not in self.codes:
            self._tick()
            self._strike()
        self._agenda.tick(everything=True)
        self._new_steps()
        self._heal(0.0)
        self._end(patience(end_s))

    def close(self) -> None:
        for pid in self._drivers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self._agenda.tick(everything=True)
        with suppress(Exception):
            self._healing.result(patience(PATIENCE_S))

    def said(self) -> str:
        """The last lines of all drivers."""
        logs = sorted(self._bench.folder.glob("driver-*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in logs[-4:])

    def _end(self, end_s: float) -> None:
        deadline, asked, steps = time.monotonic() + end_s, 0.0, 0
        while self._drivers or 0 not in self.codes:
            if time.monotonic() > deadline:
                self._show_stacks()
                raise AssertionError(f"no end within {end_s:.0f} s, codes {self.codes}")
            self._tick()
            steps += len(self._new_steps())
            if steps >= LAST_STEPS and time.monotonic() > asked + 2.0:
                asked = time.monotonic()
                client.request_stop(NAME, "struck enough")
            time.sleep(POLL_S)
        self._healing.result(patience(PATIENCE_S))

    def _show_stacks(self) -> None:
        for pid in self._drivers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)

    def _start(self) -> None:
        log = self._bench.folder / f"driver-{self._started:03}.log"
        self._started += 1
        self._drivers[_servers[0].start(self._work, log)] = log

    def _tick(self) -> None:
        """Let things heal, and collect the drivers that ended, each with a code that says why. One is always there."""
        self._agenda.tick()
        for pid, log in list(self._drivers.items()):
            code = _servers[0].code_of(pid)
            if code is None:
                continue
            del self._drivers[pid]
            self.codes.append(code)
            text = log.read_text() if log.exists() else ""
            assert code in DRIVER_CODES, f"a driver ended with code {code}: {text[-3000:]}"
            assert "Traceback (most recent" not in text, f"a driver shows a traceback: {text[-3000:]}"
        if not self._drivers and 0 not in self.codes:
            self._start()

    def _strike(self) -> None:
        """At a moment, one harm, or up to four at once."""
        if self._without_steps >= MOST_IN_RESTART:
            self._pause(RECOVERS_S, self._new_steps)
        moment, drawn = self._rng.choice(self._moments())(), self._rng.choice([1, 2, 3, 4])
        bearable = self._bearable()
        harms = self._severe() if self._rng.random() < SEVERE else bearable
        beside = self._rng.choice([bearable, bearable, harms])
        done = [harm for harm in [self._rng.choice(harms), *self._rng.choices(beside, k=drawn - 1)] if harm()]
        self._without_steps += len(done)
        for harm in done:
            name = harm.__name__.strip("_").replace("_", " ")
            self.struck[f"{self._driver}: {name} / {moment}{' / several at once' if len(done) > 1 else ''}"] += 1

    def _moments(self) -> list[Callable[[], str]]:
        often = [self._at_once] * 6 + [self._after_steps] * 3 + [self._at_commit] * 3 + [self._in_resize] * 3
        return [*often, *[self._at_upload] * 3 * self._uploads, self._in_takeover]

    def _pause(self, seconds: float, is_over: Callable[[], object] = lambda: False) -> bool:
        """Whether it was over before `seconds` had passed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if is_over():
                return True
            self._tick()
            time.sleep(POLL_S)
        return False

    def _new_steps(self) -> list[StepAttempt]:
        """Steps that ranks have made since this was called last."""
        path = self._bench.folder / "rows" / NAME / ATTEMPTS
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().rpartition(b"\n")[0]
            self._read += len(lines) + bool(lines)
            self._without_steps *= not lines
            return [StepAttempt.from_line(line.decode()) for line in lines.splitlines()]
        return []

    def _at_once(self) -> str:
        self._pause(self._rng.uniform(0, 1.5))
        return "training" if self._new_steps() else "a start or restart"

    def _after_steps(self) -> str:
        wanted, found = self._rng.randint(1, 6), 0
        self._new_steps()

        def is_over() -> bool:
            nonlocal found
            found += len(self._new_steps())
            return found >= wanted

        return "training" if self._pause(QUIET_S, is_over) else "a start or restart"

    def _at_commit(self) -> str:
        """A rank has made the step before a checkpoint, and is about to commit it."""
        self._new_steps()

        def is_over() -> bool:
            return any((each.step + 1) % self._every == 0 for each in self._new_steps())

        return "a commit" if self._pause(QUIET_S, is_over) else "a start or restart"

    def _at_upload(self) -> str:
        """A checkpoint is written to storage."""
        folder = Path(self._bench.folder) / "runs" / NAME / FOLDER

        def names() -> set[str]:
            with suppress(FileNotFoundError):
                return {path.name for path in folder.iterdir()}
            return set()

        before = names()
        if self._pause(QUIET_S, lambda: not names() <= before):
            return "an upload"
        return "training" if self._new_steps() else "a start or restart"

    def _in_resize(self) -> str:
        client.request_target(NAME, self._rng.randint(1, 3))
        self._pause(self._rng.uniform(0, 3.0))
        return "a resize"

    def _in_takeover(self) -> str:
        """The driver stands still for longer than the limit, and another one begins."""
        agenda_s = 2 * TAKEOVER_S
        if len(self._drivers) != 1 or not freeze(self._agenda, self._driver_processes(), agenda_s):
            return self._at_once()
        self.struck[f"{self._driver}: freeze driver / training"] += 1
        self._start()
        self._pause(self._rng.uniform(0, agenda_s))
        return "a takeover"

    def _bearable(self) -> list[Harm]:
        """Harms that a run bears without a restart, at most times. Most are these: so it gets on in between."""
        frozen = [self._freeze_worker, self._freeze_driver, self._freeze_coordinator, self._freeze_store]
        frozen += [self._freeze_cache_actor, self._freeze_raylet, self._starve_worker]
        controller = [self._freeze_controller] if self._driver == "ray" else []
        killed = [self._kill_cache_actor, self._kill_cache_actor, self._kill_store]
        parts = [self._freeze_part_store, self._kill_part_store, self._kill_part_stores] * 2 if self._has_parts else []
        return [*frozen, *controller, *killed, *parts, self._race]

    def _severe(self) -> list[Harm]:
        workers = [self._kill_worker, self._kill_two_workers, self._kill_stores_and_workers, self._damage]
        nodes = [self._kill_raylet, self._lose_node, self._remove_node]
        controller = [self._kill_controller] if self._driver == "ray" else []
        parts = [self._kill_part_store_and_worker, self._damage_part, self._remove_part] * 2 if self._has_parts else []
        return [*workers, *nodes, *controller, *parts, self._kill_coordinator, self._end_driver]

    def _some(self, *titles: str, most: int = 1) -> list[psutil.Process]:
        found = titled(*titles)
        return self._rng.sample(found, min(most, len(found)))

    def _kill(self, *titles: str, most: int = 1) -> bool:
        return bool(send(self._some(*titles, most=most), signal.SIGKILL))

    def _freeze(self, *titles: str, most: int = 1) -> bool:
        return freeze(self._agenda, self._some(*titles, most=most), self._rng.choice(FREEZES_S))

    def _kill_worker(self) -> bool:
        return self._kill(*WORKERS)

    def _kill_two_workers(self) -> bool:
        return len(send(self._some(*WORKERS, most=2), signal.SIGKILL)) == 2

    def _freeze_worker(self) -> bool:
        return self._freeze(*WORKERS, most=self._rng.randint(1, 2))

    def _starve_worker(self) -> bool:
        return starve(self._agenda, self._some(*WORKERS), self._rng.uniform(1, 4))

    def _kill_cache_actor(self) -> bool:
        return self._kill(*CACHE)

    def _freeze_cache_actor(self) -> bool:
        return self._freeze(*CACHE)

    def _kill_store(self) -> bool:
        return self._kill(*STORES)

    def _kill_part_store(self) -> bool:
        return self._kill(*PART_STORES)

    def _kill_part_stores(self) -> bool:
        """Of all nodes: no part of the newest checkpoint is in memory any more."""
        return self._kill(*PART_STORES, most=9)

    def _kill_part_store_and_worker(self) -> bool:
        """The next world looks for the copy on another node, or goes back to what storage has."""
        return self._kill(*PART_STORES) and self._kill(*WORKERS)

    def _freeze_store(self) -> bool:
        return self._freeze(*STORES)

    def _freeze_part_store(self) -> bool:
        return self._freeze(*PART_STORES, most=self._rng.randint(1, 2))

    def _kill_stores_and_workers(self) -> bool:
        """Workers too, before they can make another one: what storage has remains."""
        workers = self._kill(*WORKERS, most=3)
        return self._kill(*STORES, *PART_STORES, most=9) and workers

    def _freeze_coordinator(self) -> bool:
        return self._freeze(*COORDINATOR)

    def _kill_coordinator(self) -> bool:
        """Such a run ends with an error, and is started again. So it does after Ray Train's controller."""
        return self._kill(*COORDINATOR)

    def _freeze_controller(self) -> bool:
        return self._freeze(*CONTROLLER)

    def _kill_controller(self) -> bool:
        return self._kill(*CONTROLLER)

    def _driver_processes(self) -> list[psutil.Process]:
        found = []
        for pid in self._drivers:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))  # the server has not reaped it
        return self._rng.sample(found, min(1, len(found)))

    def _freeze_driver(self) -> bool:
        return freeze(self._agenda, self._driver_processes(), self._rng.choice(FREEZES_S))

    def _end_driver(self) -> bool:
        number = self._rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        return bool(send(self._driver_processes(), number))

    def _race(self) -> bool:
        """A second driver begins beside one that lives, and follows it or takes over."""
        if len(self._drivers) != 1:
            return False
        self._start()
        return True

    def _node(self) -> str | None:
        """A node that may be lost now: while nodes heal, none."""
        return self._rng.choice(here().others) if self._healing.done() and len(here().others) > 1 else None

    def _heal(self, after_s: float) -> None:
        """In a thread that never ends: a raylet ends with the thread that has started it."""

        def heal() -> None:
            time.sleep(after_s)
            # It may set no handlers of signals. The cluster, which the main thread has started, ends the new nodes too.
            hooks, Node._register_shutdown_hooks = Node._register_shutdown_hooks, lambda _: None
            try:
                here().heal()
            finally:
                Node._register_shutdown_hooks = hooks

        if self._healing.done():
            self._healing.result()
        self._healing = _healer.submit(heal)

    def _kill_raylet(self) -> bool:
        """Its workers notice by themselves."""
        if (node := self._node()) is None:
            return False
        here().kill_raylet(node)
        self._heal(self._rng.choice([0.0, 2.0, 6.0]))
        return True

    def _lose_node(self) -> bool:
        """All of its processes at once, as with a loss of power."""
        if (node := self._node()) is None:
            return False
        send(descendants(here().raylet_of(node)), signal.SIGKILL)
        here().kill_raylet(node)
        self._heal(self._rng.choice([0.0, 2.0, 6.0]))
        return True

    def _remove_node(self) -> bool:
        """As a smaller cluster does: its processes are asked to end."""
        if (node := self._node()) is None:
            return False
        here().remove(node)
        self._heal(self._rng.choice([0.0, 2.0, 6.0]))
        return True

    def _freeze_raylet(self) -> bool:
        """For less time than Ray takes to give a node up, or for more."""
        if (node := self._node()) is None:
            return False
        seconds = self._rng.choice(RAYLET_FREEZES_S)
        with suppress(psutil.NoSuchProcess):
            frozen = freeze(self._agenda, [psutil.Process(here().raylet_of(node))], seconds)
            self._heal(seconds + 1.0)
            return frozen
        return False

    def _damage(self) -> bool:
        """The newest checkpoint in storage is cut short, and the workers die."""
        return self._cut_newest("shard-*")

    def _damage_part(self) -> bool:
        """As `_damage`, a part of it; and memory has none, so it is read."""
        self._kill(*PART_STORES, most=9)
        return self._cut_newest("part-*")

    def _remove_part(self) -> bool:
        """As `_damage_part`, but the file is gone."""
        self._kill(*PART_STORES, most=9)
        self._kill(*WORKERS, most=3)
        with suppress(OSError, ValueError):
            self._newest("part-*").unlink()
            return True
        return False

    def _cut_newest(self, files: str) -> bool:
        self._kill(*WORKERS, most=3)
        with suppress(OSError, ValueError):  # none yet, or an empty one
            found = self._newest(files)
            os.truncate(found, self._rng.randrange(found.stat().st_size))
            return True
        return False

    def _newest(self, files: str) -> Path:
        return max((self._bench.folder / "runs" / NAME).glob(f"{FOLDER}/*/{files}"))


def _struck_run(rng: random.Random, folder: Path, driver: str, **given: Any) -> CaseOutcome:
    if not _servers:
        _servers.append(DriverServer())
        AT_END.append(_servers[0].close)
    here(FOUR).heal()
    bench = DriverBench(folder, rng.choice(["rows", "mixture"]))
    options: dict[str, Any] = {
        "epochs": 240,
        "elastic": ELASTIC,
        "max_failures": 300,
        "hang_timeout_s": 30.0,
        "checkpoint_every": rng.randint(1, 4),
        "storage_every_s": rng.choice([0.1, 0.1, 2.0, 3600.0]),
        "step_s": rng.choice([0.05, 0.1]),
        **given,
    }
    run, shared = str(folder / "runs" / NAME), shared_memory()
    siege = RunSiege(random.Random(rng.random()), driver, bench, options)
    try:
        siege.endure(rng.randint(LEAST_STRIKES, MOST_STRIKES), MOST_S, END_S)
        siege.close()
        # What was reached is judged: the run was stopped.
        step = judge(bench, run, is_finished=False)
        _check_nothing_left(shared)
    except Exception as error:
        siege.close()
        if isinstance(error, CannotStage):
            raise
        told = f"{dict(siege.struck)} {siege.codes}: {type(error).__name__}: {error}\n{siege.said()}"
        raise AssertionError(told) from error
    codes = Counter(siege.codes)
    kind = "error" if len(codes) > 1 else "equal"
    return CaseOutcome(kind, f"step {step}, {codes[FENCED_CODE]} taken over, {dict(codes)}", siege.struck)


def _check_nothing_left(shared: set[str]) -> None:
    """No actor, no process of the run, no object and no file. Cache actors serve the next run: they are ended.

    `shared`: the files that were in /dev/shm before.
    """
    _end_cache_actors()
    until(lambda: not living(), f"the end of all actors and placement groups: {living()}", patience(30.0))
    until(lambda: not titled("ray::"), f"the end of all processes: {titled('ray::')}", patience(30.0))
    check_object_store()
    left = [path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("forebay-checkpoint")]
    left += sorted(f"/dev/shm/{name}" for name in shared_memory() - shared)
    assert not left, f"left behind: {left}"


def _end_cache_actors() -> None:
    def is_over() -> bool:
        left = [each for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]
        for actor in left:
            if actor["name"].startswith(("forebay-cache-", "forebay-data-")):
                with suppress(ValueError):
                    ray.kill(ray.get_actor(actor["name"], namespace=NAMESPACE))
        return not any(actor["name"].startswith("forebay-cache-") for actor in left)

    until(is_over, "the end of the cache actors", PATIENCE_S)


@fault(
    "ray-run-struck",
    expected="equal: all rows once, the model of an undisturbed run, at times after an error that names the remedy",
    group="ray-run",
    deadline_s=LIMIT_S,
    share=0.5,
    quick=0,
)
def ray_run_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    return _struck_run(rng, folder, "ray")


@fault(
    "ray-parts-struck",
    expected="equal, as above, of a run whose checkpoints are in parts",
    group="ray-run",
    deadline_s=LIMIT_S,
    share=0.3,
    quick=0,
)
def ray_parts_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    return _struck_run(rng, folder, "ray", strategy="fsdp2")


@fault(
    "horovod-run-struck",
    expected="equal, as above, under Horovod",
    group="ray-run",
    deadline_s=LIMIT_S,
    share=0.3,
    quick=0,
)
def horovod_run_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    if find_spec("horovod") is None:
        return CaseOutcome("skipped", "Horovod is not installed: make horovod")
    return _struck_run(rng, folder, "horovod")
