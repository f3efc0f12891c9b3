"""Rounds of an examination: the batches a train function draws."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import Self

import torch

from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.loader.batch import Batch
from forebay.data.plan.cursor import Cursor
from forebay.doctor.findings.measurements import Contention, Round
from forebay.doctor.findings.ways import MEANINGS, RoundKind, Way, in_rounds
from forebay.doctor.rounds.cold_epoch import ColdEpoch
from forebay.doctor.rounds.feeds import Copy, GatheredBatches, KeptBatches
from forebay.doctor.rounds.production import BlockProduction, Produced
from forebay.doctor.rounds.sample import Sample
from forebay.doctor.rounds.sample_pass import BlockIO
from forebay.doctor.rounds.thread_time import ThreadClock, ThreadLoop, ThreadTime
from forebay.runtime.metrics import Counters

NUM_ROUNDS = 5
_WARM_STEPS = 3
Progress = Callable[[int, int, str], None]
"""Called with the number of finished parts, of all parts, and the text of the present one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Apparatus:
    """Parts of the rounds.

    Batches, row groups, data workers, sources, blocks of an epoch, the work of one transform.
    """

    kept: KeptBatches
    gathered: GatheredBatches
    sample: Sample
    workers: DataWorkers
    caches: Sequence[DiskCache]
    num_blocks: int
    transform_once: Callable[[], object]
    copy: Copy
    device: torch.device


@dataclass(slots=True)
class Found:
    """Results so far."""

    rounds: list[Round] = field(default_factory=list)
    produced: dict[RoundKind, list[Produced]] = field(default_factory=dict)
    probes: dict[str, ThreadTime] = field(default_factory=dict)
    idle: dict[Way, list[float]] = field(default_factory=dict)

    @property
    def contention(self) -> Contention:
        """Blocked shares of the transform, over all rounds."""
        return Contention(**{name: time.blocked_share for name, time in self.probes.items()})


class Examination:
    """Batches of all rounds, for one iteration.

    `is_complete` once the last round is over.

    A step lasts from one draw to the next. Rounds begin and end with an idle device.
    """

    def __init__(
        self, apparatus: Apparatus, stages: tuple[RoundKind, ...], start: Cursor, *, seconds: float, progress: Progress
    ) -> None:
        self._apparatus, self._stages, self._start, self._progress = apparatus, stages, start, progress
        self._round_s = seconds / NUM_ROUNDS / (len(stages) + 2)
        self.found = Found()
        self._epochs: dict[RoundKind, ColdEpoch] = {}
        self.num_steps, self.is_complete = 0, False
        self._running: Generator[Batch] | None = None

    def cursor(self) -> Cursor:
        """Position of the next batch.

        Always the start, because no round trains on data.
        """
        return self._start

    def __iter__(self) -> Iterator[Batch]:
        self._running = self._all_batches()
        return self._running

    def close(self) -> None:
        """End all threads.

        A train function that raises leaves its loop, and so this one, in a traceback.
        """
        if self._running is not None:
            self._running.close()

    def _all_batches(self) -> Generator[Batch]:
        yield from self._warm_up()
        total = NUM_ROUNDS * len(self._stages)
        for done, (number, stage) in enumerate(in_rounds(self._stages, NUM_ROUNDS)):
            self._progress(done, total, f"round {number + 1} of {NUM_ROUNDS}: {MEANINGS[stage.way]}")
            yield from self._round(number, stage)
            if stage.probes:
                self._probe_alone()
        self._progress(total, total, "measured")
        self.is_complete = True

    def _warm_up(self) -> Iterator[Batch]:
        """Take steps that compile, allocate and fill caches.

        They are not measured.
        """
        self._progress(0, NUM_ROUNDS * len(self._stages), "first steps")
        began, least = time.perf_counter(), self.num_steps + _WARM_STEPS
        for stage in self._stages:
            if stage.way is not Way.COMPUTE or stage.probes:
                continue
            for batch in self._apparatus.kept.endless_small() if stage.is_small else self._apparatus.kept.endless():
                self.num_steps += 1
                yield batch
                if self.num_steps >= least and time.perf_counter() - began > self._round_s:
                    break
            began, least = time.perf_counter(), self.num_steps + _WARM_STEPS

    def _round(self, number: int, stage: RoundKind) -> Iterator[Batch]:
        counters, steps = Counters(), 0
        with closing(self._batches(stage, counters)) as batches, self._beside(stage) as is_enough:
            if stage.way not in (Way.COMPUTE, Way.COPY):
                next(batches)  # waits for the start of the loader, which an epoch has once
            self._synchronize()
            clock = ThreadClock()
            before, began, cpu = counters.as_dict(), time.perf_counter(), time.process_time()
            while time.perf_counter() - began < self._round_s or not is_enough():
                self.num_steps, steps = self.num_steps + 1, steps + 1
                yield next(batches)
            self._synchronize()
            step_s, cpu_s = (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps
            gathered = counters.since(before)
            if stage.way is Way.COMPUTE and not stage.is_small:
                self._add_probe("training_beside" if stage.probes else "training", clock.elapsed())
        produced = self.found.produced[stage][-1] if stage in self.found.produced else None
        rows = self._apparatus.kept.rows
        self.found.rounds.append(
            Round(
                number=number,
                stage=stage,
                step_s=step_s,
                cpu_s=cpu_s,
                produce_s=rows * produced.seconds / produced.rows if produced else 0.0,
                read_s=rows * produced.read_s / produced.rows if produced else 0.0,
                make_s=rows * produced.make_s / produced.rows if produced else 0.0,
                num_reads=produced.num_reads if produced else 0.0,
                gather_s=sum(gathered.get(name, 0) for name in ("gather_s", "augment_s", "plan_s")) / steps,
                num_steps=steps,
            )
        )

    def _batches(self, stage: RoundKind, counters: Counters) -> Generator[Batch]:
        kept, copy = self._apparatus.kept, self._apparatus.copy
        match stage.way:
            case Way.COMPUTE:
                yield from kept.endless_small() if stage.is_small else kept.endless()
            case Way.COPY:
                yield from kept.endless_copied(copy)
            case _:
                yield from self._apparatus.gathered.endless(
                    copy, counters, batch_bytes=kept.nbytes, is_small=stage.is_small
                )

    @contextmanager
    def _beside(self, stage: RoundKind) -> Iterator[Callable[[], bool]]:
        """Make blocks beside the training of a round.

        Yields a function that returns whether there was enough of it.
        """
        with ExitStack() as stack:
            is_enough: Callable[[], bool] = lambda: True  # noqa: E731 - replaced below
            if stage.way in (Way.TRANSFORM, Way.NETWORK):
                is_enough = stack.enter_context(self._producing(stage))
            if stage.probes:
                loop = ThreadLoop(self._apparatus.transform_once, 1)
                loop.start()
                stack.callback(lambda: self._add_probe("beside", loop.stop()))
            if self._apparatus.device.type == "cuda":
                gauge = stack.enter_context(GpuIdle(self._apparatus.device))
                stack.callback(lambda: self.found.idle.setdefault(stage.way, []).extend(gauge.shares))
            yield is_enough

    @contextmanager
    def _producing(self, stage: RoundKind) -> Iterator[Callable[[], bool]]:
        apparatus = self._apparatus
        from_source = stage.way is Way.NETWORK
        block_io = BlockIO(sample=apparatus.sample, caches=apparatus.caches, from_source=from_source)
        epoch = self._epochs.setdefault(stage, ColdEpoch(apparatus.num_blocks))
        production = BlockProduction(block_io, apparatus.workers.times(stage.worker_factor), epoch)
        production.start()
        try:
            yield production.has_made_enough
        finally:
            produced = production.stop()
        self.found.produced.setdefault(stage, []).append(produced)

    def _probe_alone(self) -> None:
        """Run the transform while the train function waits.

        In one thread, and in two.
        """
        for name, num_threads in (("alone", 1), ("together", 2)):
            self._add_probe(name, ThreadLoop(self._apparatus.transform_once, num_threads).run_for(self._round_s))

    def _add_probe(self, name: str, time: ThreadTime) -> None:
        self.found.probes[name] = self.found.probes.get(name, ThreadTime()) + time

    def _synchronize(self) -> None:
        if self._apparatus.device.type == "cuda":
            torch.cuda.synchronize(self._apparatus.device)


_EVERY_S = 0.05
PIP_LINE = "pip install nvidia-ml-py"


class GpuIdle:
    """Samples the utilization of a GPU every 50 ms.

    A context manager. `shares` are the idle shares.

    Without NVML's package `shares` stays empty: `PIP_LINE` installs it.
    """

    def __init__(self, device: torch.device) -> None:
        self.shares: list[float] = []
        self._device, self._ends = device, threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-doctor", daemon=True)

    def __enter__(self) -> Self:
        if find_spec("pynvml") is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        # torch finds the device's number in NVML, which may differ from CUDA's.
        while not self._ends.wait(_EVERY_S):
            self.shares.append(1 - torch.cuda.utilization(self._device) / 100)
