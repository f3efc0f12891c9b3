"""A run that continues under another job is refused before a worker starts, with both values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.data.cache.spec import CacheSpec
from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, JobMismatch
from forebay.training.job.job import Job
from forebay.training.runs.job_record import FILE_NAME, load_identity
from forebay.training.runs.run import Run


@pytest.fixture
def job(parquet_folder: Callable[..., Path], tmp_path: Path) -> Job:
    plan = build_plan(scan(parquet_folder({"a.parquet": [12]})), seed=0)
    return Job(
        train=print,
        data=Data(plan=plan, transform=Transform(x=Dense(["x0"])), global_batch=4),
        cache=CacheSpec(path=str(tmp_path / "cache"), quota_bytes=1 << 30, min_free_bytes=0),
        storage=str(tmp_path / "runs"),
        name="mine",
        identity={"model": "llama, 3fa1", "adapter": "lora r=16"},
        parameters={"lr": 0.1, "hub_token": "sesame"},
    )


def unchanged(batch: dict[str, Any], rng: object) -> dict[str, Any]:
    return batch


def test_both_values_are_given(job: Job) -> None:
    with Run(job) as run:
        assert run.control.job_facts["lr"] == 0.1
    for identity, text in (
        ({"adapter": "lora r=8"}, "begun with adapter = lora r=16, and this job has adapter = lora r=8. Set adapter"),
        ({"model": "llama, 9c02"}, "model = llama, 3fa1, and this job has model = llama, 9c02"),
    ):
        with pytest.raises(JobMismatch, match=text):
            Run(replace(job, identity={**job.identity, **identity}))
    # Other parameters, facts that only one of them names, and the same job again give no reason.
    with Run(replace(job, identity={"model": "llama, 3fa1", "seq_len": 8}, parameters={"lr": 0.2})) as run:
        assert load_identity(run.path) == {**job.identity, "seq_len": 8}


def test_the_record_holds_no_secret_and_is_only_there_where_there_are_facts(job: Job) -> None:
    with Run(job) as run:
        record = json.loads(Path(run.path, FILE_NAME).read_text())
    assert record["parameters"]["hub_token"] == "***"
    augmented = replace(job.data, augment=unchanged)
    with Run(replace(job, identity={}, parameters={}, name="augmented", data=augmented)) as run:
        record = json.loads(Path(run.path, FILE_NAME).read_text())
    assert record["parameters"]["job.augment"].startswith("unchanged ") and record["identity"] == {}
    with Run(replace(job, identity={}, parameters={}, name="plain")) as run:
        assert not Path(run.path, FILE_NAME).exists()
        Path(run.path, FILE_NAME).write_text("{}")
        with pytest.raises(InvalidOption, match=r"not the job.json of a Forebay run"):
            load_identity(run.path)
