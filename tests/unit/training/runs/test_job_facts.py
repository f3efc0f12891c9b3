"""Facts of a job hold what it was made with, and no secret. A run that continues under another job is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from forebay.events import EpochEnded
from forebay.training.job.job import Job
from forebay.training.job.recipe import call_recipe
from forebay.training.runs.job_facts import FILE_NAME, job_facts, load_identity, public_fact
from forebay.training.runs.run import Run

SECRET = "sesame-42-open"


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


def test_parameters_come_with_defaults_and_numbers_of_the_job(job: Job) -> None:
    def recipe(lr: float = 0.1, hidden: tuple[int, ...] = (4, 2), label: str | None = None) -> Job:
        return replace(job, epochs=3, seed=9, parameters={})

    facts = job_facts(call_recipe(recipe, {"lr": "0.5"}))
    assert {name: facts[name] for name in ("lr", "hidden", "label")} == {"lr": 0.5, "hidden": "[4, 2]", "label": None}
    assert (facts["job.epochs"], facts["job.seed"], facts["job.global_batch"]) == (3, 9, 4)
    assert json.loads(json.dumps(facts)) == facts


def test_the_augment_counts_by_its_code(job: Job) -> None:
    def facts_of(augment: Callable[..., Any] | None) -> Any:
        return job_facts(replace(job, data=replace(job.data, augment=augment))).get("job.augment")

    scaled, other = (partial(scale, factor=factor) for factor in (2, 3))
    assert facts_of(None) is None
    assert facts_of(scaled) == facts_of(partial(scale, factor=2)) != facts_of(other)
    assert facts_of(scaled).startswith("scale ")


def scale(batch: dict[str, Any], rng: object, *, factor: int) -> dict[str, Any]:
    return {name: array * factor for name, array in batch.items()}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("data", f"s3://AKIA:{SECRET}@lake/chats?region=eu-west-1", "s3://lake/chats?region=eu-west-1"),
        ("mix", {f"s3://AKIA:{SECRET}@lake/a": 0.5}, '{"s3://lake/a": 0.5}'),
        ("hub_token", SECRET, "***"),
        ("options", {"password": SECRET, "n": 1}, '{"password": "***", "n": 1}'),
        ("note", f"opened with {SECRET}", "opened with ***"),
        ("password", None, None),
        ("tokenizer", "mine", "mine"),
        ("max_tokens", 3, 3),
        ("keys", [1, 2], "[1, 2]"),
        ("path", Path("a") / "b", "a/b"),
    ],
)
def test_secrets_are_left_out(name: str, value: Any, expected: Any) -> None:
    public_fact("seen", f"s3://AKIA:{SECRET}@lake/chats")  # the process knows it from here on
    assert public_fact(name, value) == expected


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


def test_a_run_that_had_ended_before_says_so_with_the_parameters_of_its_result(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    ended = EpochEnded(epoch=0, step=3, metrics={}, rows=12, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0)
    with Run(job) as run:
        run.tell(ended)
        run.finish(None)
    assert "before" not in caplog.text
    with Run(job) as again:
        assert again.is_finished
    assert "Run 'mine' had trained all its epochs before. Nothing is trained now" in caplog.text
    caplog.clear()
    with Run(replace(job, parameters={"lr": 0.5, "hub_token": "other", "data": "clicks"})) as other:
        assert other.is_finished
    assert "before, with lr=0.1. Nothing is trained now" in caplog.text and "sesame" not in caplog.text


def test_a_run_that_goes_on_with_other_parameters_says_so(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job = replace(job, epochs=2, parameters={"lr": 0.1, "hub_token": "sesame", "placed.machine": "a"})
    with Run(job) as run:
        run.tell(EpochEnded(epoch=0, step=3, metrics={}, rows=12, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0))
    with Run(replace(job, parameters={"lr": 0.1, "hub_token": "other", "placed.machine": "b"})):
        assert "goes on" not in caplog.text
    with Run(replace(job, parameters={"lr": 0.5, "clip": 1})):
        assert "Run 'mine' goes on with lr=0.5 (before: 0.1). What its checkpoint holds stays" in caplog.text
    caplog.clear()
    with Run(replace(job, parameters={"lr": 0.5, "clip": 1})):
        assert "goes on" not in caplog.text


def test_a_function_of_another_process_is_no_other_parameter(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def same(address: str) -> Job:
        of_a_process = type("Loss", (), {"__repr__": lambda _: f"<function mse at {address}>"})()
        return replace(job, epochs=2, parameters={"loss": of_a_process})

    with Run(same("0x7f00")) as run:
        run.tell(EpochEnded(epoch=0, step=3, metrics={}, rows=12, seconds=1, wait_s=0, eval_s=0, checkpoint_s=0))
    with Run(same("0x7fff")):
        assert "goes on" not in caplog.text
    # The order of a set is another one in each process.
    assert public_fact("columns", set("hgfedcba")) == json.dumps(list("abcdefgh"))
