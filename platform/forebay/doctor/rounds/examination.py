"""Rounds of an examination: the batches a train function draws."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Self

import torch

from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.loader.batch import Batch
from forebay.data.plan.cursor import Cursor
from forebay.doctor.findings.measurements import Round
from forebay.doctor.findings.ways import MEANINGS, RoundKind, Way, essential, in_pass, without_making
from forebay.doctor.rounds.cold_epoch import ColdEpoch
from forebay.doctor.rounds.deadline import Deadline
from forebay.doctor.rounds.feeds import Copy, GatheredBatches, KeptBatches
from forebay.doctor.rounds.found import Activity, Found
from forebay.doctor.rounds.production import BlockProduction
from forebay.doctor.rounds.sample import Sample
from forebay.doctor.rounds.sample_pass import BlockIO
from forebay.doctor.rounds.thread_time import ThreadClock, ThreadLoop, ThreadTime
from forebay.runtime.foreign_code import begin
from forebay.runtime.metrics import Counters

NUM_ROUNDS = 5
_WARM_STEPS = 3
_ROUNDS_SHARE = 0.9
_FIRST_SHARE = 0.7
"""Share of the time that is left which the first pass may take."""
_WARM_SHARE = 0.1
"""Share of the time that is left for the first steps of each size, unless one step takes longer."""
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
    new_caches: Callable[[], Sequence[DiskCache]]
    num_blocks: int
    transform_once: Callable[[], object]
    copy: Copy | None
    device: torch.device


class Examination:
    """Batches of all rounds, for one iteration.

    `is_over` once the last round is over, or the deadline.

    A step lasts from one draw to the next. Rounds begin and end with an idle device. A pass is one round of each stage.
    Its rounds share the time that is left, so slow blocks and slow steps make passes fewer, and not the time longer.
    """

    def __init__(
        self,
        apparatus: Apparatus,
        stages: tuple[RoundKind, ...],
        start: Cursor,
        found: Found,
        *,
        deadline: Deadline,
        progress: Progress,
    ) -> None:
        self._apparatus, self._stages, self._start, self._progress = apparatus, stages, start, progress
        self._deadline, self.found = deadline, found
        self._round_s = 0.0
        self._epochs: dict[RoundKind, ColdEpoch] = {}
        self._caches = apparatus.new_caches()
        self.num_steps, self.is_over = 0, False
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
        self._round_s = self._part_s()
        yield from self._warm_up()
        self._stages = self.found.stages = self._affordable()
        self._round_s = self._part_s()
        made_s = other_s = 0.0
        for number in range(NUM_ROUNDS):
            # Rounds that make blocks may take long: then they are fewer, and the others as many as there is time for.
            left_s = self._deadline.left_s
            if self._deadline.is_over or left_s < other_s:
                break
            makes = left_s >= made_s + (NUM_ROUNDS - number) * other_s
            spent = yield from self._pass(number, self._stages if makes else without_making(self._stages))
            made_s, other_s = (made_s, other_s) if number else spent
        self._progress(self._total, self._total, "measured")
        self.is_over = True

    def _pass(self, number: int, stages: tuple[RoundKind, ...]) -> Generator[Batch, None, tuple[float, float]]:
        """Run a round of each stage.

        Returns the seconds of stages that make blocks, and of the others.
        """
        made_s = other_s = 0.0
        for place, stage in enumerate(in_pass(number, stages)):
            if self._deadline.is_over:
                break  # a part of a pass says nothing
            began, share = self._deadline.now(), 1.0 if number else _FIRST_SHARE
            text = f"round {number + 1} of {NUM_ROUNDS}: {MEANINGS[stage.way]}"
            self._progress(number * len(self._stages) + place, self._total, text)
            limit_s = share * self._deadline.left_s / (len(stages) - place)
            yield from self._round(number, stage, limit_s)
            if stage.probes and not self._deadline.is_over:
                self._probe_alone(limit_s)
            spent_s, makes = self._deadline.now() - began, stage not in without_making(stages)
            made_s, other_s = made_s + spent_s * makes, other_s + spent_s * (not makes)
        return made_s, other_s

    @property
    def _total(self) -> int:
        return NUM_ROUNDS * len(self._stages)

    def _part_s(self) -> float:
        """Time of a round, where all take equally long.

        The transform alone takes two, and loaders need a start.
        """
        return _ROUNDS_SHARE * self._deadline.left_s / NUM_ROUNDS / (len(self._stages) + 2)

    def _affordable(self) -> tuple[RoundKind, ...]:
        """Return the stages that a pass has time for, a step each.

        All, or one for each way, or the first.
        """
        for stages in (self._stages, essential(self._stages)):
            if len(stages) * self.found.step_s < self._deadline.left_s:
                return stages
        return self._stages[:1]

    def _warm_up(self) -> Iterator[Batch]:
        """Take steps that compile, allocate and fill caches.

        They are not measured.
        """
        self._progress(0, self._total, "first steps")
        for stage in self._stages:
            if (stage.way is not Way.COMPUTE or stage.probes) and self.num_steps:
                continue
            began, least = self._deadline.now(), self.num_steps + _WARM_STEPS
            most_s = _WARM_SHARE * self._deadline.left_s
            for batch in self._apparatus.kept.endless_small() if stage.is_small else self._apparatus.kept.endless():
                if self._deadline.is_over:
                    return
                yield from self._step(batch)
                spent_s = self._deadline.now() - began
                if spent_s > most_s or (self.num_steps >= least and spent_s > self._round_s):
                    break

    def _step(self, batch: Batch) -> Iterator[Batch]:
        """Yield one batch, and note when its step begins and ends."""
        self.num_steps += 1
        self.found.begin(Activity.STEP, self._deadline.now())
        yield batch
        now = self._deadline.now()
        self.found.step_s = now - self.found.since
        self.found.begin(Activity.WAIT, now)

    def _round(self, number: int, stage: RoundKind, limit_s: float) -> Iterator[Batch]:
        """Take a round's steps, for `limit_s` or at least one step."""
        counters, steps, ends = Counters(), 0, self._deadline.now() + limit_s
        with closing(self._batches(stage, counters)) as batches, self._beside(stage, ends) as is_enough:
            if stage.way not in (Way.COMPUTE, Way.COPY):
                next(batches)  # waits for the start of the loader, which an epoch has once
            self._synchronize()
            clock, now = ThreadClock(), self._deadline.now
            before, began, cpu = counters.as_dict(), now(), time.process_time()
            while not steps or (now() < ends and (now() - began < self._round_s or not is_enough())):
                steps += 1
                yield from self._step(next(batches))
            self._synchronize()
            step_s, cpu_s = (now() - began) / steps, (time.process_time() - cpu) / steps
            gathered = counters.since(before)
            if stage.way is Way.COMPUTE and not stage.is_small:
                self._add_probe("training_beside" if stage.probes else "training", clock.elapsed())
        produced = self.found.produced[stage][-1] if stage in self.found.produced else None
        if produced is not None and not produced.rows:
            return  # nothing had begun: an estimate stands for it
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
        kept, copy, device = self._apparatus.kept, self._apparatus.copy, self._apparatus.device
        match stage.way:
            case Way.COMPUTE:
                yield from kept.endless_small() if stage.is_small else kept.endless()
            case Way.COPY:
                yield from kept.endless_fed(device) if copy is None else kept.endless_copied(copy)
            case _:
                yield from self._apparatus.gathered.endless(
                    copy or device, counters, batch_bytes=kept.nbytes, is_small=stage.is_small
                )

    @contextmanager
    def _beside(self, stage: RoundKind, ends: float) -> Iterator[Callable[[], bool]]:
        """Make blocks during the training of a round.

        Yields a function that returns whether there was enough of it. Work that has not ended when the round `ends` is
        left behind.
        """
        with ExitStack() as stack:
            is_enough: Callable[[], bool] = lambda: True  # noqa: E731 - replaced below
            if stage.way in (Way.TRANSFORM, Way.NETWORK):
                is_enough = stack.enter_context(self._producing(stage, ends))
            if stage.probes:
                loop = ThreadLoop(self._apparatus.transform_once, 1)
                loop.start()
                stack.callback(lambda: self._add_probe("beside", loop.stop(self._until(ends))))
            if self._apparatus.device.type == "cuda":
                gauge = stack.enter_context(GpuIdle(self._apparatus.device))
                stack.callback(lambda: self.found.idle.setdefault(stage.way, []).extend(gauge.late_shares))
            yield is_enough

    @contextmanager
    def _producing(self, stage: RoundKind, ends: float) -> Iterator[Callable[[], bool]]:
        apparatus = self._apparatus
        from_source = stage.way is Way.NETWORK
        block_io = BlockIO(sample=apparatus.sample, caches=self._caches, from_source=from_source)
        epoch = self._epochs.setdefault(stage, ColdEpoch(apparatus.num_blocks))
        production = BlockProduction(block_io, apparatus.workers.times(stage.worker_factor), epoch)
        production.start()
        try:
            yield production.has_made_enough
        finally:
            produced = production.stop(self._until(ends))
            if production.is_left_behind:
                self._caches = apparatus.new_caches()  # the next passes must find none of its blocks
        self.found.produced.setdefault(stage, []).append(produced)

    def _until(self, ends: float) -> float:
        """Seconds until a time by the clock of the deadline."""
        return max(0.0, ends - self._deadline.now())

    def _probe_alone(self, limit_s: float) -> None:
        """Run the transform while the train function waits.

        In one thread, and in two.
        """
        self.found.begin(Activity.PROBE, self._deadline.now())
        for name, num_threads in (("alone", 1), ("together", 2)):
            loop = ThreadLoop(self._apparatus.transform_once, num_threads)
            self._add_probe(name, loop.run_for(self._round_s, within_s=min(limit_s, self._deadline.left_s)))

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

    Without NVML's package `shares` stays empty: `PIP_LINE` installs it. NVML averages over up to a second before each
    sample, so `late_shares` leaves out the first half, which tells of the round before.
    """

    def __init__(self, device: torch.device) -> None:
        self.shares: list[float] = []
        self._device, self._ends = device, threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-doctor", daemon=True)

    @property
    def late_shares(self) -> list[float]:
        """Shares of the second half."""
        return self.shares[len(self.shares) // 2 :]

    def __enter__(self) -> Self:
        if find_spec("pynvml") is not None:
            begin(self._thread)
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
