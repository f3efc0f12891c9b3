"""Examination of a job, from its parts to a bottleneck.

Everything is in memory, or in one temporary folder.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from forebay.data.cache.builders.data_workers import DEFAULT_WORKERS, usable_cores
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.batch import Batch
from forebay.doctor.findings.bottleneck import BottleneckVerdict, verdict_of
from forebay.doctor.findings.estimates import Estimates, complete_passes, with_estimates
from forebay.doctor.findings.gains import Gain, gains_of
from forebay.doctor.findings.measurements import JobFacts, Measurements
from forebay.doctor.findings.ways import RoundKind, Way, essential, stages_of
from forebay.doctor.rounds.deadline import Deadline
from forebay.doctor.rounds.examination import Apparatus, Examination, Progress
from forebay.doctor.rounds.examined_worker import ExaminedWorker
from forebay.doctor.rounds.feeds import Copy, GatheredBatches, KeptBatches, small_rows
from forebay.doctor.rounds.found import Activity, Found
from forebay.doctor.rounds.held_blocks import HeldBlocks
from forebay.doctor.rounds.production import UnfinishedBlock
from forebay.doctor.rounds.sample import HeldPagesReader, Sample, num_blocks, read_sample
from forebay.doctor.rounds.sample_pass import MOST_PASSES
from forebay.doctor.rounds.thread_time import ThreadClock
from forebay.errors import BadJob, ForebayError, InvalidOption, RunFailed, whole_number
from forebay.runtime.foreign_code import OutcomeThread, begin, outcome_of
from forebay.runtime.gpus import gpus_here
from forebay.runtime.metrics import Counters
from forebay.training.driver.worker_error import WorkerError
from forebay.training.job.job import Job
from forebay.training.job.resources import device_of, settled, use_device
from forebay.training.state import rng
from forebay.world import World

LEAST_SECONDS = 1.0
_PREPARED_SHARE = 0.1
"""Share of the time for reading the sample, and for building held blocks, each."""
_ROUNDS_SHARE, _CUT_OFF_SHARE = 0.9, 0.97
"""Shares of the time after which no round begins, and after which a step that has not ended is left behind."""
_LONG_SHARE = 0.05
"""Share of the time from which on a call that did not end is named."""
_INTERRUPTED_S = 5.0
"""Time for threads to end after Ctrl-C."""
_MOST_CACHE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of an examination: measurements, bottlenecks, gains of changes."""

    measurements: Measurements
    verdict: BottleneckVerdict
    gains: tuple[Gain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationOptions:
    """Options of an examination.

    Attributes:
        workers: Ranks on this machine, among which batches and data workers are divided. None: the job's number.
        seconds: Time of the examination. What has not ended then is left behind, and what was measured is judged.
        copy: Copies a batch to the device. None: as a worker does.
        progress: Called at every round.
    """

    workers: int | None = None
    seconds: float = 60.0
    copy: Copy | None = None
    progress: Progress = lambda done, total, text: None  # noqa: ARG005

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole_number("workers", self.workers, least=1)
        if not self.seconds >= LEAST_SECONDS:
            raise InvalidOption(
                f"seconds={self.seconds:g} is too short for five ways of running the job. Give {LEAST_SECONDS:g} or "
                "more; 60 is the default.",
                seconds=self.seconds,
            )


def diagnose(job: Job, options: ExaminationOptions | None = None) -> Diagnosis:
    """Measure where a job's train function spends its time.

    It runs for about `seconds` on batches from five sources.

    Its run folder and its cache are not opened. No checkpoint is saved, no epoch ends, no callback or monitor runs.
    Raises `RunFailed` if the train function raises, `BadJob` if it ends early or draws no batch, and other
    `ForebayError`s for a job that cannot run.
    """
    options = options or ExaminationOptions()
    for data in (job.data, *([job.held_out] if job.held_out else [])):
        data.validate_columns()
    world = World(rank=0, size=options.workers or job.start_workers)
    job.data.validate_world_size(world.size)
    # One rank runs here.
    device = use_device(device_of(settled(job.resources, gpus_here(), workers=1)))
    with _temporary_folder(job.cache) as folder, _state_kept(job, device):
        return _diagnose(job, options, ExaminedRank(folder=folder, world=world, device=device))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRank:
    """Rank that is examined, with its folder and its device."""

    folder: Path
    world: World
    device: torch.device


def _diagnose(job: Job, options: ExaminationOptions, rank: ExaminedRank) -> Diagnosis:
    """Examine in a thread, and judge its results at the deadline."""
    run = ExaminationRun(job, options, rank)
    thread = OutcomeThread(run.examine, "forebay-doctor")
    ends_s = _INTERRUPTED_S
    begin(thread)
    try:
        thread.join(_CUT_OFF_SHARE * options.seconds)
        ends_s = (1 - _CUT_OFF_SHARE) * options.seconds
    finally:
        # Threads end before their folder does. A call that does not end is left behind.
        run.deadline.end()
        thread.join(ends_s)
    if thread.outcome is not None:
        thread.outcome.result()
    measured = run.measurements()
    verdict = verdict_of(measured)
    return Diagnosis(measurements=measured, verdict=verdict, gains=tuple(gains_of(measured, verdict)))


class ExaminationRun:
    """Phases of an examination, within one deadline.

    `measurements` has the results so far, at any time.
    """

    def __init__(self, job: Job, options: ExaminationOptions, rank: ExaminedRank) -> None:
        self._job, self._options, self._rank = job, options, rank
        self._workers = (job.cache.data_workers if job.cache else DEFAULT_WORKERS).divided_by(rank.world.size)
        # The end of the last round takes time too: threads are joined, the device becomes idle.
        self.deadline = Deadline(_ROUNDS_SHARE * options.seconds)
        self._found = Found()
        self._kept: KeptBatches | None = None
        self._held = HeldBlocks(_cache(job.cache, rank.folder / "held"))
        self._stages: tuple[RoundKind, ...] = ()
        self._sample: Sample = ()
        self._transform_once: Callable[[], object] = tuple

    def examine(self) -> None:
        """Run all phases. Raises the errors of each."""
        job, rank, options, found = self._job, self._rank, self._options, self._found
        use_device(rank.device)  # each thread has a current one
        self._prepare()
        gathered = GatheredBatches(data=job.data, world=rank.world, blocks=self._held)
        copy = options.copy or (_stay if rank.device.type == "cpu" else None)
        self._kept = kept = gathered.keep(copy or partial(_moved, device=rank.device), rank.device)
        apparatus = Apparatus(
            kept=kept,
            gathered=gathered,
            sample=self._sample,
            workers=self._workers,
            new_caches=partial(_new_caches, job.cache, rank.folder),
            num_blocks=num_blocks(job.data, rank.world, self._sample),
            transform_once=self._transform_once,
            copy=copy,
            device=rank.device,
        )
        copies = options.copy is not None or copy is None
        self._stages = stages_of(copies=copies, resizes=_may_resize(job, kept.rows))
        examination = Examination(
            apparatus, self._stages, job.data.start, found, deadline=self.deadline, progress=options.progress
        )
        found.begin(Activity.SET_UP, self.deadline.now())
        _examine(job, examination, rank.device)

    def _prepare(self) -> None:
        """Read the sample and make the first blocks."""
        found, now, seconds = self._found, self.deadline.now, _PREPARED_SHARE * self._options.seconds
        found.begin(Activity.READ, now())
        self._options.progress(0, 1, found.activity)
        self._sample = read_sample(
            self._job.data, self._rank.world, num_reads=self._workers.read_bounds.start, deadline=Deadline(seconds)
        )
        found.sample_s = now() - found.since
        found.sample_rows = sum(each.row_group.rows for each in self._sample)
        found.begin(Activity.DECODE, now())
        self._options.progress(0, 1, found.activity)
        self._transform_once = _transform_once(self._sample)  # before the clock of the first block
        found.begin(Activity.MAKE, now())
        self._options.progress(0, 1, found.activity)
        counters = Counters()
        found.unfinished = UnfinishedBlock(counters, time.perf_counter())
        self._held.fill(self._sample, deadline=Deadline(seconds), counters=counters)
        found.making, found.made_rows, found.unfinished = counters.as_dict(), self._held.rows, None

    def measurements(self) -> Measurements:
        """Return the results so far, with estimates of missing ones.

        Raises `BadJob` if nothing of the job was at work yet.
        """
        found = self._found
        lasted_s = self.deadline.now() - found.since
        if found.activity in {Activity.DECODE, Activity.SET_UP} and not found.step_s:
            raise BadJob(
                f"the time ended during {found.activity}, which had lasted {lasted_s:.3g} s. So no step can be "
                f"measured. Give the examination more time: --seconds {10 * self._options.seconds:g}.",
                seconds=lasted_s,
            )
        required = {*found.stages, *essential(self._stages)}
        rounds, cut_off = complete_passes(found.rounds, tuple(required)) if self._stages else (), None
        estimates = self._estimates(lasted_s)
        if not rounds:
            copies = any(stage.way is Way.COPY for stage in self._stages)
            rounds = with_estimates(found.rounds, estimates, copies=copies)
            cut_off = self._cut_off(lasted_s)
        made = [each.sums for each in found.produced.get(RoundKind(way=Way.TRANSFORM), ())] or [self._making()]
        names = {"remote_read_s": "read", "decode_s": "decode", "transform_s": "transform", "write_s": "write"}
        sums = {text: sum(each.get(name, 0.0) for each in made) for name, text in names.items()}
        total = sum(sums.values()) or 1.0
        return Measurements(
            facts=self._facts(),
            rounds=rounds,
            contention=found.contention if ThreadClock.is_exact else None,
            making={text: seconds / total for text, seconds in sums.items()},
            gpu_idle={way: sum(shares) / len(shares) for way, shares in found.idle.items() if shares},
            cut_off=cut_off,
        )

    def _cut_off(self, lasted_s: float) -> str:
        seconds, activity = self._options.seconds, self._found.activity
        during = f" during {activity}, which had lasted {lasted_s:.3g} s" if lasted_s > _LONG_SHARE * seconds else ""
        return (
            f"The time ended after {seconds:g} s{during}, before each way had a round. So some figures are estimates, "
            f"and slow ones are lower bounds. Give more time: --seconds {10 * seconds:g}."
        )

    def _making(self) -> Mapping[str, float]:
        """Seconds of each step of the first blocks, ended or not."""
        unfinished = self._found.unfinished
        return self._found.making if unfinished is None else unfinished.sums(is_read=False)

    def _estimates(self, lasted_s: float) -> Estimates:
        """Seconds of a step, by sample, first blocks and first steps.

        Of a phase that has not ended, by its time so far.
        """
        found, rows = self._found, self._rows()
        first_rows = self._job.data.datasets[0].manifest[0].rows
        waits = {each: lasted_s if found.activity is each else 0.0 for each in Activity}
        making = self._making()
        made_s, made_rows = making.get("decode_s", 0.0) + making.get("transform_s", 0.0), found.made_rows or first_rows
        read_s, read_rows = (
            (found.sample_s, found.sample_rows) if found.sample_rows else (waits[Activity.READ], first_rows)
        )
        step_s = max(found.compute_s, waits[Activity.STEP])
        return Estimates(
            step_s=step_s,
            gather_s=step_s + waits[Activity.WAIT],
            read_s=rows * read_s / max(read_rows, 1),
            make_s=rows * made_s / max(made_rows, 1) / self._workers.num_cores(),
            num_reads=float(self._workers.read_bounds.start),
        )

    def _rows(self) -> int:
        """Rows of a step of this rank."""
        world = self._rank.world.size
        return self._kept.rows if self._kept is not None else max(1, self._job.data.global_batch // world)

    def _facts(self) -> JobFacts:
        job, rows, held, workers = self._job, self._rows(), self._held, self._workers
        return JobFacts(
            rows=rows,
            small_rows=small_rows(rows),
            batch_bytes=self._kept.nbytes if self._kept is not None else 0,
            block_bytes=held.nbytes / max(held.rows, 1) * sum(each.manifest.num_rows for each in job.data.datasets),
            quota_bytes=job.cache.quota_bytes if job.cache else None,
            epochs=job.epochs,
            workers=self._rank.world.size,
            data_cores=workers.num_cores(),
            fixed_reads=None if workers.num_reads == "auto" else workers.num_reads,
            cores=usable_cores(),
            is_local=all(each.held is None for each in self._sample),
            device=self._rank.device.type,
            has_function=any(each.transform.fn is not None for each in job.data.datasets),
        )


def _examine(job: Job, examination: Examination, device: torch.device) -> None:
    # Monitors could ask to go back to a checkpoint, and a policy could change the batches.
    spec = replace(job.train_spec, monitors=(), batch=None)
    worker = ExaminedWorker(spec, examination, device)
    error = outcome_of(lambda: worker.examine(job.train)).error
    if isinstance(error, ForebayError | KeyboardInterrupt):
        raise error
    if error is not None:  # sys.exit() too
        raise _failed(WorkerError.of(error, rank=0)) from error


def _failed(raised: WorkerError) -> RunFailed:
    return RunFailed(
        f"the train function raised {raised.summary} during the examination. Nothing was saved. Correct the function; "
        f"forebay run with driver=local and one worker runs it in the same way.\n\n{raised.traceback}",
        summary=raised.summary,
        traceback=raised.traceback,
    )


def _may_resize(job: Job, rows: int) -> bool:
    """Return whether batches may have fewer rows.

    With last="drop" the train function may rely on their size.
    """
    return rows > 1 and job.data.last == "balance" and job.reduction == "mean" and not job.data.plan.windows


def _stay(batch: Batch) -> Batch:
    return batch


def _moved(batch: Batch, device: torch.device) -> Batch:
    return batch.to(device)


def _transform_once(sample: Sample) -> Callable[[], object]:
    first = sample[0]
    reader = HeldPagesReader(first.dataset, sample, Counters())
    table = reader.read(first.index, first.dataset.columns)  # without rows that the transform may reject
    return partial(first.dataset.transform.apply, table)


def _new_caches(spec: CacheSpec | None, folder: Path) -> list[DiskCache]:
    """Open the cache directories of the passes over a sample.

    None for a job that stores no blocks.
    """
    if spec is None or not spec.quota_bytes:
        return []
    return [_cache(spec, Path(tempfile.mkdtemp(prefix="made-", dir=folder))) for _ in range(MOST_PASSES)]


def _cache(spec: CacheSpec | None, folder: Path) -> DiskCache:
    """Open a cache directory with the limits of the job's own."""
    spec = spec or CacheSpec()
    quota_bytes = min(spec.quota_bytes or _MOST_CACHE_BYTES, _MOST_CACHE_BYTES)
    return DiskCache(folder, quota_bytes=quota_bytes, min_free_bytes=spec.min_free_bytes)


@contextmanager
def _temporary_folder(spec: CacheSpec | None) -> Iterator[Path]:
    """Make a folder on the disk of the job's cache.

    In the system's temporary folder if that fails.
    """
    beside = Path(spec.directory).parent if spec is not None else None
    made: tempfile.TemporaryDirectory[str] | None = None
    if beside is not None and beside.is_dir():
        with suppress(OSError):
            made = tempfile.TemporaryDirectory(prefix="forebay-doctor-", dir=beside, ignore_cleanup_errors=True)
    # A block that was left behind may be written while the folder is removed.
    with made or tempfile.TemporaryDirectory(prefix="forebay-doctor-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def _state_kept(job: Job, device: torch.device) -> Iterator[None]:
    """Use as many torch threads as a worker.

    Restores them, and the random generators, at the end.
    """
    state, threads = rng.capture(device), torch.get_num_threads()
    torch.set_num_threads(max(1, int(job.resources.cpus)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        rng.restore(state, device)
