"""Facts of a job hold what it was made with, and no secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forebay.training.job.job import Job
from forebay.training.job.job_facts import job_facts, public_fact
from forebay.training.job.recipe import call_recipe

SECRET = "sesame-42-open"


def test_parameters_come_with_defaults_and_numbers_of_the_job(make_job: Callable[..., Job]) -> None:
    def recipe(lr: float = 0.1, hidden: tuple[int, ...] = (4, 2), label: str | None = None) -> Job:
        return make_job(epochs=3, seed=9)

    facts = job_facts(call_recipe(recipe, {"lr": "0.5"}))
    assert {name: facts[name] for name in ("lr", "hidden", "label")} == {"lr": 0.5, "hidden": "[4, 2]", "label": None}
    assert (facts["job.epochs"], facts["job.seed"], facts["job.global_batch"]) == (3, 9, 8)
    assert json.loads(json.dumps(facts)) == facts


def test_the_augment_counts_by_its_code(make_job: Callable[..., Job]) -> None:
    def facts_of(augment: Callable[..., Any] | None) -> Any:
        job = make_job()
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
