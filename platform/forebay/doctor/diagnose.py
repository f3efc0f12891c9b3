"""Examination of a job, from its parts to its verdict.

Everything is in memory, or in one temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
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
from forebay.doctor.findings.gains import Gain, gains_of
from forebay.doctor.findings.measurements import JobFacts, Measurements
from forebay.doctor.findings.ways import RoundKind, Way, stages_of
from forebay.doctor.rounds.examination import Apparatus, Examination, Found, Progress
from forebay.doctor.rounds.examined_worker import ExaminedWorker
from forebay.doctor.rounds.feeds import Copy, GatheredBatches, small_rows
from forebay.doctor.rounds.held_blocks import HeldBlocks
from forebay.doctor.rounds.sample import HeldPagesReader, Sample, num_blocks, read_sample
from forebay.doctor.rounds.sample_pass import MOST_PASSES
from forebay.doctor.rounds.thread_time import ThreadClock
from forebay.errors import ForebayError, InvalidOption, RunFailed, whole_number
from forebay.runtime.foreign_code import outcome_of
from forebay.runtime.gpus import gpus_here
from forebay.runtime.metrics import Counters
from forebay.training.driver.worker_error import WorkerError
from forebay.training.job.job import Job
from forebay.training.job.resources import settled
from forebay.training.runs.worker_spec import device_of, use_device
from forebay.training.state import rng
from forebay.world import World

LEAST_SECONDS = 1.0
_PREPARED_SHARE = 0.1
"""Share of the time for reading the sample, and for building held blocks, each."""
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
        seconds: Time of all rounds together. Slow steps and slow blocks may take longer.
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
        return _diagnose(job, options, _ExaminedRank(folder=folder, world=world, device=device))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExaminedRank:
    folder: Path
    world: World
    device: torch.device


def _diagnose(job: Job, options: ExaminationOptions, rank: _ExaminedRank) -> Diagnosis:
    workers = (job.cache.data_workers if job.cache else DEFAULT_WORKERS).divided_by(rank.world.size)
    prepare_s = _PREPARED_SHARE * options.seconds
    options.progress(0, 1, "reading the first row groups")
    sample = read_sample(job.data, rank.world, num_reads=workers.read_bounds.start, seconds=prepare_s)
    options.progress(0, 1, "making the first blocks")
    held = HeldBlocks(_cache(job.cache, rank.folder / "held"))
    held.fill(sample, seconds=prepare_s)
    copy = options.copy or _copy_to(rank.device)
    gathered = GatheredBatches(data=job.data, world=rank.world, blocks=held)
    apparatus = Apparatus(
        kept=gathered.keep(copy or _stay, rank.device),
        gathered=gathered,
        sample=sample,
        workers=workers,
        caches=_caches(job.cache, rank.folder),
        num_blocks=num_blocks(job.data, rank.world, sample),
        transform_once=_transform_once(sample),
        copy=copy or _stay,
        device=rank.device,
    )
    stages = stages_of(copies=copy is not None, resizes=_may_resize(job, apparatus.kept.rows))
    seconds = options.seconds * (1 - 2 * _PREPARED_SHARE)
    examination = Examination(apparatus, stages, job.data.start, seconds=seconds, progress=options.progress)
    _examine(job, examination, rank.device)
    measured = _measurements(examination.found, _facts(job, rank, apparatus, held))
    verdict = verdict_of(measured)
    return Diagnosis(measurements=measured, verdict=verdict, gains=tuple(gains_of(measured, verdict)))


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


def _measurements(found: Found, facts: JobFacts) -> Measurements:
    made = found.produced[RoundKind(way=Way.TRANSFORM)]
    names = {"remote_read_s": "read", "decode_s": "decode", "transform_s": "transform", "write_s": "write"}
    sums = {text: sum(each.sums.get(name, 0.0) for each in made) for name, text in names.items()}
    total = sum(sums.values()) or 1.0
    return Measurements(
        facts=facts,
        rounds=tuple(found.rounds),
        contention=found.contention if ThreadClock.is_exact else None,
        making={text: seconds / total for text, seconds in sums.items()},
        gpu_idle={way: sum(shares) / len(shares) for way, shares in found.idle.items() if shares},
    )


def _facts(job: Job, rank: _ExaminedRank, apparatus: Apparatus, held: HeldBlocks) -> JobFacts:
    rows = apparatus.kept.rows
    return JobFacts(
        rows=rows,
        small_rows=small_rows(rows),
        batch_bytes=apparatus.kept.nbytes,
        block_bytes=held.nbytes / held.rows * sum(dataset.manifest.num_rows for dataset in job.data.datasets),
        quota_bytes=job.cache.quota_bytes if job.cache else None,
        epochs=job.epochs,
        workers=rank.world.size,
        data_cores=apparatus.workers.num_cores(),
        fixed_reads=None if apparatus.workers.num_reads == "auto" else apparatus.workers.num_reads,
        cores=usable_cores(),
        is_local=all(each.held is None for each in apparatus.sample),
        device=rank.device.type,
    )


def _may_resize(job: Job, rows: int) -> bool:
    """Return whether batches may have fewer rows.

    With last="drop" the train function may rely on their size.
    """
    return rows > 1 and job.data.last == "balance" and job.reduction == "mean" and not job.data.plan.windows


def _copy_to(device: torch.device) -> Copy | None:
    return None if device.type == "cpu" else lambda batch: batch.to(device)


def _stay(batch: Batch) -> Batch:
    return batch


def _transform_once(sample: Sample) -> Callable[[], object]:
    first = sample[0]
    reader = HeldPagesReader(first.dataset, sample, Counters())
    table = reader.read(first.index, first.dataset.columns)  # without rows that the transform may reject
    return partial(first.dataset.transform.apply, table)


def _caches(spec: CacheSpec | None, folder: Path) -> list[DiskCache]:
    """Open the cache directories of the passes over a sample.

    None for a job that stores no blocks.
    """
    if spec is None or not spec.quota_bytes:
        return []
    return [_cache(spec, folder / f"made-{number}") for number in range(MOST_PASSES)]


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
            made = tempfile.TemporaryDirectory(prefix="forebay-doctor-", dir=beside)
    with made or tempfile.TemporaryDirectory(prefix="forebay-doctor-") as folder:
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
