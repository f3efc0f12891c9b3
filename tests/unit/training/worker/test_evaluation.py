"""`fb.evaluate_auc` on the held-out data of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forebay.data.loader.data import Data
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import BadJob
from forebay.events import Warned
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.evaluation import evaluate_auc
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

Evaluated = Callable[..., tuple[dict[str, float], list[Warned]]]


@pytest.fixture
def evaluated(make_data: Callable[..., Data], make_recorder: type, tmp_path: Path) -> Evaluated:
    """Result and warnings of a model that is a function of the batch."""

    def run(model: Callable[[Any], torch.Tensor], **features: Any) -> tuple[dict[str, float], list[Warned]]:
        data, recorder = make_data(), make_recorder()
        held_out = replace(data, transform=Transform(**features)) if features else data
        spec = TrainSpec(data=data, held_out=held_out)
        worker = Worker(spec, SingleProcessCollective(), None, DirectoryStore(tmp_path / "run"), recorder)
        try:
            return evaluate_auc(worker, model), recorder.of(Warned)  # type: ignore[arg-type]
        finally:
            worker.close()

    return run


def test_logits_far_from_zero_are_told_apart(evaluated: Evaluated) -> None:
    found, warned = evaluated(lambda batch: batch["label"].double() * 1e-7 + 1e6)
    assert (found, warned) == ({"auc": 1.0}, [])


def all_ones(rows: Any) -> dict[str, Any]:
    return {"label": np.ones(rows.num_rows, np.float32)}


def test_an_area_that_is_nan_says_why(evaluated: Evaluated) -> None:
    for model, features, reason in (
        (lambda batch: batch["label"] * float("nan"), {}, "the logit or the label of 43 of 43 held-out rows is NaN"),
        (lambda batch: batch["label"], {"fn": all_ones, "version": "1"}, "no label of 43 held-out rows is 0"),
    ):
        found, [warned] = evaluated(model, **features)
        assert np.isnan(found["auc"])
        assert warned.reason == f"evaluate_auc: auc is NaN, because {reason}."


def test_batches_without_a_label_are_refused(evaluated: Evaluated) -> None:
    with pytest.raises(BadJob, match=r"reads batch\['label'\], and the held-out batches have 'x'"):
        evaluated(lambda batch: batch["x"], x=Dense(["x0"]))


def test_a_job_without_held_out_data_is_refused(
    make_data: Callable[..., Data], make_recorder: type, tmp_path: Path
) -> None:
    spec = TrainSpec(data=make_data())
    worker = Worker(spec, SingleProcessCollective(), None, DirectoryStore(tmp_path / "run"), make_recorder())
    with pytest.raises(BadJob, match="held_out="):
        evaluate_auc(worker, nn.Linear(1, 1))
