from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.errors import (
    BatchTooSmall,
    ExitCode,
    InvalidOption,
    MissingColumn,
    TooManyRanks,
    WriteFailed,
    WrongType,
)
from forebay.training.batch_size.lr_scaling import SqrtScaling
from forebay.training.batch_size.noise_scale import NoiseScale
from forebay.training.batch_size.schedule import BatchSchedule
from forebay.training.job.elastic import Elastic
from forebay.training.job.job import Job
from forebay.training.job.resources import Resources
from forebay.training.monitors.loss_guard import LossGuard
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.worker.spec import TrainSpec


def test_a_job_is_a_frozen_value_with_defaults(data: Data) -> None:
    job = Job(train=print, data=data)
    assert (job.epochs, job.workers, job.resources, job.storage) == (1, 1, Resources(cpus=1.0, gpus=None), "runs")
    assert (job.seed, job.checkpoint_every, job.max_failures, job.cache) == (0, 100, 3, CacheSpec())
    with pytest.raises(FrozenInstanceError):
        job.epochs = 2  # type: ignore[misc]
    assert replace(job, epochs=2).epochs == 2


def test_workers_are_told_what_they_need(make_job: Callable[..., Job], data: Data) -> None:
    job = make_job(held_out=data, epochs=4, seed=9, checkpoint_every=7, workers=2)
    options = {"epochs": 4, "seed": 9, "checkpoint_every": 7, "monitors": (LossGuard(),)}
    assert job.train_spec == TrainSpec(data=data, held_out=data, **options)  # type: ignore[arg-type]
    travelled = cloudpickle.loads(cloudpickle.dumps(job.train_spec))
    assert travelled.data.plan.id == data.plan.id
    assert travelled.data.transform.fingerprint == data.transform.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, r"epochs=0 .* >= 1"),
        ({"epochs": 1.5}, r"epochs=1.5 .* whole number"),
        ({"workers": 0}, r"workers=0"),
        ({"workers": True}, r"workers=True"),
        ({"checkpoint_every": 0}, r"checkpoint_every=0"),
        ({"max_failures": -1}, r"max_failures=-1 .* >= 0"),
        ({"seed": -1}, r"seed=-1"),
        ({"name": "a/b"}, r"name='a/b' .*letters"),
        ({"name": ".."}, r"name='\.\.'"),
        ({"name": "a" * 256}, "cannot name a folder.* 255"),
        ({"train": "train"}, r"train='train' is not a function"),
        ({"name": 3}, r"name=3: give a text"),
        ({"resources": 1}, r"resources=1: give fb\.Resources"),
        ({"resources": Resources(gpus=0.5), "workers": 2}, r"gpus=0\.5 can put two of up to 2 workers on one GPU, and"),
        ({"data": 3}, r"data=3: give fb\.Data"),
        ({"held_out": "x"}, r"held_out='x': give fb\.Data"),
        ({"elastic": 3}, r"elastic=3: give fb\.Elastic"),
        ({"monitors": 3}, r"monitors=3: give a tuple"),
        ({"monitors": (3,)}, r"monitors=\(3,\): give monitors, such as fb\.monitors\.NanGuard\(\)"),
        ({"monitors": (NanGuard(), None)}, r"monitors=.*None.*: give monitors"),
        ({"monitors": (NanGuard,)}, r"monitors=.*NanGuard.*: give monitors"),
        ({"batch": 64}, r"batch=64: give fb\.batch_size\.BatchSchedule"),
        ({"rate": "linear"}, r"rate='linear': give fb\.batch_size\.LinearScaling"),
        ({"workers": 2, "elastic": Elastic(min_workers=1, max_workers=2)}, r"workers=2 and Elastic\(.* both given"),
        ({"reduction": "sum"}, r"reduction='sum' is unknown. Choose one of 'mean', 'adasum', 'exact'"),
        ({"reduction": "adasum", "batch": NoiseScale(min_batch=8, max_batch=64)}, r"reduction=\"adasum\""),
        ({"reduction": "exact", "batch": NoiseScale(min_batch=8, max_batch=64)}, r"reduction=\"exact\""),
        ({"keep_last": 0}, r"keep_last=0 .* >= 1"),
        ({"keep_every": 0}, r"keep_every=0 .* >= 1"),
        ({"storage_every_s": -1}, r"storage_every_s=-1 .* 0 seconds or more"),
        ({"hang_timeout_s": float("nan")}, r"hang_timeout_s=nan"),
    ],
)
def test_values_that_can_never_work(make_job: Callable[..., Job], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make_job(**options)


def test_more_workers_than_lanes(make_job: Callable[..., Job], data: Data) -> None:
    assert make_job(workers=4).workers == 4
    with pytest.raises(TooManyRanks, match=r"5 ranks .* 4 lanes"):
        make_job(workers=5)
    few_lanes = replace(data, plan=type(data.plan)(data.plan.manifest, seed=0, lanes=2, shuffle_rows=8, shuffle=False))
    with pytest.raises(TooManyRanks, match=r"3 ranks .* 2 lanes"):
        make_job(workers=3, held_out=few_lanes)


def test_workers_of_an_elastic_job(make_job: Callable[..., Job]) -> None:
    job = make_job(elastic=Elastic(min_workers=2, max_workers=4, start=3))
    assert (job.start_workers, job.min_workers, job.max_workers) == (3, 2, 4)
    fixed = make_job(workers=2)
    assert (fixed.start_workers, fixed.min_workers, fixed.max_workers) == (2, 2, 2)
    with pytest.raises(TooManyRanks, match=r"5 ranks .* 4 lanes"):
        make_job(elastic=Elastic(min_workers=1, max_workers=5))


@pytest.mark.parametrize(("least", "most", "start"), [(0, 1, None), (3, 2, None), (1, 2, 3), (2, 4, 1), (1, 2.5, None)])
def test_bounds_that_no_world_fits(least: int, most: int, start: int | None) -> None:
    with pytest.raises(InvalidOption):
        Elastic(min_workers=least, max_workers=most, start=start)


def test_what_steers_a_run_travels_to_its_workers(make_job: Callable[..., Job]) -> None:
    options = {"batch": BatchSchedule({1: 16}), "rate": SqrtScaling(warmup_steps=3), "reduction": "adasum"}
    job = make_job(monitors=[NanGuard()], **options)
    assert job.monitors == (NanGuard(),)
    travelled = cloudpickle.loads(cloudpickle.dumps(job.train_spec))
    assert (travelled.monitors, travelled.reduction) == ((NanGuard(), LossGuard(finite=False)), "adasum")
    assert (travelled.batch, travelled.rate) == (options["batch"], options["rate"])


def test_batch_with_fewer_rows_than_workers(make_job: Callable[..., Job], data: Data) -> None:
    few = replace(data, global_batch=3)
    assert make_job(data=few, workers=3).data.global_batch == 3, "fewer rows than lanes are enough"
    with pytest.raises(BatchTooSmall, match=r"global_batch=3 .* workers \(4\)\. Use global_batch=4 or more"):
        make_job(data=few, workers=4)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (BatchSchedule({1: 25}), r"BatchSchedule\(\{1: 25\}\) .*drop all 24 rows.*at most 24"),
        (NoiseScale(min_batch=4, max_batch=25), r"NoiseScale\(max_batch=25\) .*drop all 24 rows"),
    ],
)
def test_batches_that_a_policy_could_never_cut(
    make_job: Callable[..., Job], data: Data, policy: Any, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        make_job(data=replace(data, last="drop"), batch=policy)
    assert make_job(batch=policy).batch == policy, "one batch of all rows, where they are balanced"


def test_batches_at_the_bounds_of_the_plan(make_job: Callable[..., Job], data: Data) -> None:
    for policy in (BatchSchedule({1: 4, 2: 24}), NoiseScale(min_batch=4, max_batch=24)):
        assert make_job(data=replace(data, last="drop"), batch=policy).batch == policy


def test_data_that_can_never_work(data: Data) -> None:
    with pytest.raises(InvalidOption, match=r"global_batch=0"):
        replace(data, global_batch=0)
    with pytest.raises(InvalidOption, match=r"last='pad'"):
        replace(data, last="pad")
    with pytest.raises(InvalidOption, match=r"drops all 24 rows.*<= 24"):
        replace(data, global_batch=25, last="drop")


def test_data_counts_its_batches(data: Data) -> None:
    assert (data.num_batches, data.dropped_rows) == (3, 0)
    uneven = replace(data, global_batch=7)
    assert (uneven.num_batches, uneven.dropped_rows) == (4, 0)
    dropping = replace(data, global_batch=7, last="drop")
    assert (dropping.num_batches, dropping.dropped_rows) == (3, 3)


@pytest.mark.parametrize(("cpus", "gpus"), [(0, 0), (-1, 1), (1, -0.5)])
def test_resources_that_run_nothing(cpus: float, gpus: float) -> None:
    with pytest.raises(InvalidOption, match=rf"cpus={cpus}, gpus={gpus}"):
        Resources(cpus=cpus, gpus=gpus)


def test_check_passes_and_leaves_only_folders(make_job: Callable[..., Job], tmp_path: Path) -> None:
    make_job().check()
    make_job(cache=None).check()
    assert list((tmp_path / "runs").iterdir()) == []


def test_check_looks_at_the_columns(make_job: Callable[..., Job], data: Data) -> None:
    missing = replace(data, transform=Transform(x=Dense(["x0", "x9"]), label=Label("clicked")))
    with pytest.raises(MissingColumn, match="x9"):
        make_job(data=missing).check()
    wrong = replace(data, transform=Transform(label=Label("s")))
    with pytest.raises(WrongType, match="s"):
        make_job(held_out=wrong).check()


def test_check_opens_the_cache(make_job: Callable[..., Job], tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="quota_bytes=-1"):
        make_job(cache=CacheSpec(path=str(tmp_path / "none"), quota_bytes=-1)).check()


def test_check_does_not_touch_the_probe_of_another_job(make_job: Callable[..., Job], tmp_path: Path) -> None:
    probe = tmp_path / "runs" / ".forebay-write-check"
    probe.parent.mkdir()
    probe.write_text("of another job, which is about to delete it")
    make_job().check()
    assert [path.name for path in probe.parent.iterdir()] == [probe.name]


def test_a_check_on_a_full_disk_leaves_nothing_behind(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a file fits, its content does not: as with a file of at most no bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    job = make_job(cache=None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(WriteFailed, match=r"could not be written to .*runs .*Make room") as full:
            job.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "runs").iterdir()) == []
    assert full.value.exit_status == ExitCode.MACHINE


def test_check_writes_to_the_storage(make_job: Callable[..., Job], tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(InvalidOption, match=r"storage=.*file.* cannot be written"):
        make_job(storage=str(occupied)).check()
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(InvalidOption, match=r"locked.* cannot be written"):
            make_job(storage=str(locked)).check()
    with pytest.raises(InvalidOption, match="gopher"):
        make_job(storage="gopher://host/runs").check()
