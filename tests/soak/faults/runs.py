"""Runs of the local driver whose workers, drivers, disks and storage are struck.

The model of a run counts the rows that shaped it (`forebay.testing.drivers.bench`). Cases share a process, and a
server from which workers fork: a start of one with PyTorch takes 3 CPU seconds.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tests.soak import mounts
from tests.soak.case import AT_END, CaseOutcome, fault
from tests.soak.faults.caches import fill
from tests.soak.faults.processes import Child
from tests.soak.guards import Before
from tests.soak.siege import ENDED_CODE, Siege, code_of, hurry

from forebay.errors import ForebayError
from forebay.events import Event, Started
from forebay.testing.drivers.bench import ROWS, DriverBench, newest_commit
from forebay.testing.drivers.counting_model import CountingModel, build_optimizer, train_step
from forebay.testing.drivers.events import Disturbance, StepRecord
from forebay.training.checkpoint import background_writer, local_store
from forebay.training.driver.local import driver as local_driver
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.control import Control
from forebay.training.runs.result import load_result
from forebay.training.worker.worker import Worker

LIMIT_S = 90.0
DISK_BYTES = 6 << 20
NAME = "struck"
TIME = time.time
KEPT = ("import signal; signal.signal", "moto.server", "servers/proxy.py")
"""Processes that outlive a case by design: the server from which workers fork, and S3 servers."""


def struck_train(worker: Worker, *, log: str, step_s: float) -> None:
    """Train as `recording_train` does. Before each step, a rank does to itself what the folder `log` says."""
    model, optimizer = worker.setup(CountingModel(ROWS), build_optimizer)
    steps = StepRecord(worker, log, Disturbance(), step_s)
    for batch in worker.loader():
        _harm_self(Path(log), worker.world.rank)
        loss = train_step(model, optimizer, batch, worker.world.size)
        steps.write([int(row) for row in batch["row"][:, 0]] if batch.weight else [])
        worker.commit(loss=loss)


def _harm_self(log: Path, rank: int) -> None:
    with suppress(FileNotFoundError):
        jump_s = float((log / f"clock-{rank}").read_text())
        time.time = lambda: TIME() + jump_s
    order = log / f"memory-{rank}"
    if order.exists():
        order.unlink()
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))


def job_of(bench: DriverBench, *, step_s: float, **options: Any) -> Job:
    log = bench.folder / "rows" / NAME
    job = bench.job(NAME, **options)
    return replace(job, train=partial(struck_train, log=str(log), step_s=step_s))


def judge(bench: DriverBench, run: str, *, is_finished: bool = True) -> int:
    """Assert that every row shaped the final model once, and that it is an undisturbed run's. Returns its step."""
    result = load_result(run)
    assert result is not None and result.is_finished >= is_finished, f"no result of all epochs: {result}"
    bench.assert_every_row_once(result)
    bench.assert_like_undisturbed(result)
    return newest_commit(result).step


def check_result(bench: DriverBench, run: str) -> None:
    """`judge` in a process of its own: training starts threads, and this process forks."""
    assert Child(lambda: judge(bench, run)).join() == 0, "the final state is not an undisturbed run's"


@contextmanager
def own_folders(folder: Path) -> Iterator[None]:
    """Temporary files and the home folder below `folder`, of which the first must be empty afterwards."""
    before = {name: os.environ.get(name) for name in ("TMPDIR", "HOME")}
    temporary, home = folder / "tmp", folder / "home"
    for name, path in (("TMPDIR", temporary), ("HOME", home)):
        path.mkdir()
        os.environ[name] = str(path)
    tempfile.tempdir = None
    held = Before()
    try:
        yield
    finally:
        tempfile.tempdir = None
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    leaks = held.leaks(KEPT)
    if _servers and _servers[0].pid is not None and psutil.pid_exists(_servers[0].pid):
        leaks += [f"worker {child.pid}" for child in psutil.Process(_servers[0].pid).children()]
    left = [path.name for path in temporary.iterdir() if path.name.startswith("forebay-")]
    assert not leaks and not left, f"left behind: {leaks} {left}"


_servers: list[Any] = []


def kept_server() -> Any:
    """The server from which the workers of all cases of this process fork."""
    from tests.unit.kept_server import KeptForkServer

    if not _servers:
        _servers.append(KeptForkServer())
        AT_END.append(_servers[0].end)
        import torch._dynamo  # noqa: F401 - the first optimizer imports it, in each fork
    return _servers[0]


class WorkerStrikes:
    """Strikes on the workers of a run in this process, in a thread."""

    def __init__(self, rng: random.Random, bench: DriverBench, share: Path, *, is_elastic: bool) -> None:
        self._rng, self._bench, self._share, self._is_elastic = random.Random(rng.random()), bench, share, is_elastic
        self.struck: Counter[str] = Counter()
        self._control: Control | None = None
        self._over = threading.Event()
        self._left = rng.randint(1, 6)
        self._thread = threading.Thread(target=self._run, name="strikes", daemon=True)
        self.errors: list[BaseException] = []

    def hear(self, event: Event, control: Control) -> None:
        self._control = control
        if isinstance(event, Started) and not self._thread.ident:
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.ident:
            self._thread.join(30)
        for rank in range(3):
            (self._bench.folder / "rows" / NAME / f"clock-{rank}").unlink(missing_ok=True)
        if self.errors:
            raise self.errors[0]

    def _run(self) -> None:
        try:
            while self._left and not self._over.wait(self._rng.choice([0.0, self._rng.uniform(0, 1.0)])):
                self._left -= 1
                harm = self._rng.choice(self._harms())
                if harm():
                    self.struck[f"local worker: {harm.__name__.strip('_').replace('_', ' ')}"] += 1
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.errors.append(error)

    def _harms(self) -> list[Callable[[], bool]]:
        harms = [self._kill, self._kill, self._kill_two, self._stop, self._starve, self._clock, self._memory]
        harms += [self._kill_server, self._cache, self._full, self._kill_and_damage]
        return [*harms, self._resize, self._resize_and_kill] if self._is_elastic else harms

    def _workers(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return list(psutil.Process(kept_server().pid).children())
        return []

    def _signal(self, number: int, most: int = 1) -> list[psutil.Process]:
        workers = self._workers()
        chosen = self._rng.sample(workers, min(most, len(workers)))
        for worker in chosen:
            with suppress(psutil.NoSuchProcess):
                worker.send_signal(number)
        return chosen

    def _kill(self) -> bool:
        return bool(self._signal(signal.SIGKILL))

    def _kill_two(self) -> bool:
        return len(self._signal(signal.SIGKILL, 2)) == 2

    def _stop(self) -> bool:
        stopped = self._signal(signal.SIGSTOP, self._rng.randint(1, 2))
        self._over.wait(self._rng.uniform(0, 1.5))
        for worker in stopped:
            with suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGCONT)
        return bool(stopped)

    def _starve(self) -> bool:
        """A worker gets a twentieth of its time, as at load 20."""
        chosen = self._signal(0)
        for _ in range(self._rng.randint(3, 12)):
            for number, wait_s in ((signal.SIGSTOP, 0.095), (signal.SIGCONT, 0.005)):
                with suppress(psutil.NoSuchProcess):
                    for worker in chosen:
                        worker.send_signal(number)
                time.sleep(wait_s)
        return bool(chosen)

    def _order(self, name: str, text: str = "") -> bool:
        (self._bench.folder / "rows" / NAME / f"{name}-{self._rng.randrange(2)}").write_text(text)
        return True

    def _clock(self) -> bool:
        return self._order("clock", str(self._rng.uniform(-1e5, 1e5)))

    def _memory(self) -> bool:
        """From its next step on, a rank gets no more memory."""
        return self._order("memory")

    def _kill_server(self) -> bool:
        with suppress(ProcessLookupError):
            os.kill(kept_server().pid, signal.SIGKILL)
            return True
        return False

    def _cache(self) -> bool:
        shutil.rmtree(self._bench.folder / "cache" / "blocks", ignore_errors=True)
        return True

    def _full(self) -> bool:
        if mounts.problem():
            return False
        filler = self._share / "somebody-elses"
        fill(filler)
        self._over.wait(self._rng.uniform(0, 0.5))
        filler.unlink(missing_ok=True)
        return True

    def _kill_and_damage(self) -> bool:
        """The next world finds its newest checkpoint cut short."""
        killed = self._signal(signal.SIGKILL, 3)
        with suppress(OSError, IndexError):
            found = sorted((self._share / NAME).glob("checkpoints/*/shard-*"))
            os.truncate(found[-1], self._rng.randrange(found[-1].stat().st_size))
        return bool(killed)

    def _resize(self) -> bool:
        if self._control is not None:
            self._control.resize(self._rng.randint(1, 3))
        return self._control is not None

    def _resize_and_kill(self) -> bool:
        self._resize()
        time.sleep(self._rng.uniform(0, 0.4))
        return self._kill()


@fault(
    "local-workers-struck",
    expected="equal: all rows once, the model of an undisturbed run, at times after an error that names the remedy",
    group="run",
    deadline_s=LIMIT_S,
    share=1.0,
    quick=0,
)
def local_workers_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    share = _share(folder)
    with own_folders(folder):
        bench = DriverBench(folder, rng.choice(["rows", "mixture"]))
        elastic = Elastic(min_workers=1, max_workers=3, start=2) if rng.random() < 0.5 else None
        options: dict[str, Any] = {"epochs": rng.randint(2, 5), "checkpoint_every": rng.randint(1, 4)}
        job = job_of(
            bench,
            step_s=rng.choice([0.0, 0.02, 0.05]),
            workers=1 if elastic else 2,
            elastic=elastic,
            max_failures=rng.choice([1, 50, 50]),
            storage=str(share),
            hang_timeout_s=30.0,
            **options,
        )
        local_driver.ForkServer = lambda _: kept_server()  # type: ignore[assignment, misc]
        struck, errors = Counter[str](), []
        for number in range(12):
            strikes = WorkerStrikes(rng, bench, share, is_elastic=elastic is not None)
            try:
                LocalDriver().run(job, [strikes.hear] if number < 2 else [])
                break
            except ForebayError as error:
                errors.append(check_words(error))
            finally:
                strikes.close()
                struck += strikes.struck
        else:
            raise AssertionError(f"the run did not end: {errors}")
        check_result(bench, str(share / NAME))
    return CaseOutcome("error" if errors else "equal", ", ".join(errors), struck)


def check_words(error: ForebayError) -> str:
    """Assert that an error says what to do, and shows no frame of Forebay. Returns its kind."""
    text = str(error)
    assert ". " in text, f"no remedy: {text}"
    frames = [line for line in text.splitlines() if "platform/forebay/training/driver" in line]
    assert not frames, f"a traceback through the driver: {text}"
    return type(error).__name__


def _share(folder: Path) -> Path:
    share = folder / "share"
    share.mkdir()
    if not mounts.problem():
        mounts.mount_tmpfs(share, DISK_BYTES)
    return share


@dataclass
class DriverSiege(Siege):
    """Drivers of one run."""

    cache: Path = Path()
    title: str = "local driver"

    def harms(self) -> list[Callable[[], bool]]:
        return [*super().harms(), self.interrupt, self.cache_gone, self.cache_damaged]

    def interrupt(self) -> bool:
        for child in self._some():
            child.signal(signal.SIGINT)
        return bool(self.children)

    def cache_gone(self) -> bool:
        shutil.rmtree(self.cache, ignore_errors=True)
        return True

    def cache_damaged(self) -> bool:
        for path in list(self.cache.glob("blocks/*"))[:2]:
            with suppress(OSError):
                content = bytearray(path.read_bytes())
                content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
                path.with_name(".flipped").write_bytes(content)
                path.with_name(".flipped").rename(path)
        return True


def drive(make: Callable[[], Job], *, machines: bool, least_bytes: int, home: Path, jump_s: float = 0.0) -> None:
    """A driver with its worker, in this fork. Ends it with the exit code of a driver."""
    hurry(machines=machines, ask_s=0.1)
    background_writer.LEAST_BYTES = local_store.LEAST_BYTES = least_bytes
    if jump_s:
        begun = time.monotonic()
        time.time = lambda: TIME() + jump_s * (time.monotonic() - begun > 0.3)
    os.environ["HOME"] = str(home)
    try:
        job = make()
        object.__setattr__(job.start, "takeover_s", 1.0)
        LocalDriver().run(job)
    except KeyboardInterrupt:
        os._exit(ENDED_CODE)
    except ForebayError as error:
        check_words(error)
        sys.stderr.write(f"{type(error).__name__}: {error}"[:400] + "\n")
        sys.stderr.flush()
        sys.exit(code_of(error))


@fault(
    "local-drivers-struck",
    expected="equal, by the driver that ends last; a driver that was taken over ends with code 75",
    group="run",
    deadline_s=LIMIT_S,
    share=2.0,
    quick=1,
)
def local_drivers_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    kept_server()
    share = _share(folder)
    with own_folders(folder):
        bench = DriverBench(folder, rng.choice(["rows", "mixture"]))
        machines, least = rng.random() < 0.5, rng.choice([1 << 14, 16 << 20])
        jump_s = rng.choice([0.0, rng.uniform(-1e5, 1e5)])
        options: dict[str, Any] = {"epochs": rng.randint(2, 6), "checkpoint_every": rng.randint(1, 4)}
        make = partial(
            job_of,
            bench,
            step_s=rng.choice([0.0, 0.02]),
            workers=1,
            storage=str(share),
            start=StartPolicy(follow=True),
            storage_every_s=0.1,
            **options,
        )
        start = partial(drive, make, machines=machines, least_bytes=least, home=folder / "home", jump_s=jump_s)
        siege = DriverSiege(random.Random(rng.random()), start, share / NAME, share, 1.0, cache=folder / "cache")
        try:
            siege.endure(rng.randint(2, 7), 0.8, LIMIT_S * 0.6)
        finally:
            siege.close()
        check_result(bench, str(share / NAME))
    if jump_s:
        siege.struck["local driver: clock"] += 1
    return CaseOutcome("equal", faults=siege.struck)
