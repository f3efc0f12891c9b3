"""Rounds within one deadline, whatever a step takes: by a clock that only steps move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay as fb
from forebay.data.cache.builders.data_workers import DataWorkers
from forebay.data.loader.batch import Batch
from forebay.doctor.findings.ways import MEANINGS, RoundKind, Way, essential, stages_of
from forebay.doctor.rounds.deadline import Deadline
from forebay.doctor.rounds.examination import NUM_ROUNDS, Apparatus, Examination
from forebay.doctor.rounds.feeds import KeptBatches
from forebay.doctor.rounds.found import Found
from forebay.doctor.rounds.sample import read_sample
from forebay.world import World

SECONDS = 60.0
CPU = torch.device("cpu")
STAGES = stages_of(copies=False, resizes=True)
BATCH = Batch({"x": torch.zeros(8, 2)}, position=0, size=8, num_rows=8, weight=1.0)


@dataclass
class PlayedClock:
    """Clock that only steps move."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time


class SameBatches:
    """The same batch, over and over."""

    def endless(self, *given: Any, **options: Any) -> Iterator[Batch]:
        return (batch for batch in repeat(BATCH))


@pytest.fixture
def examined(parquet_folder: Callable[..., Path]) -> Callable[[float], tuple[Found, float, Counter[str]]]:
    """Results with steps of some seconds, the time of the clock at the end, and the texts of progress."""
    plan = fb.build_plan(fb.scan(parquet_folder({"a.parquet": [8] * 4})), lanes=4)
    data = fb.Data(plan=plan, transform=fb.Transform(x=fb.Dense(["x0", "x1"])), global_batch=8)
    sample = read_sample(data, World(rank=0, size=1), num_reads=2, deadline=Deadline(60))
    apparatus = Apparatus(
        kept=KeptBatches(in_memory=(BATCH,), on_device=(BATCH,)),
        gathered=SameBatches(),
        sample=sample,
        workers=DataWorkers(),
        new_caches=list,
        num_blocks=4,
        transform_once=lambda: None,
        copy=lambda batch: batch,
        device=CPU,
    )

    def examine(step_s: float) -> tuple[Found, float, Counter[str]]:
        clock, texts = PlayedClock(), Counter[str]()
        deadline, found = Deadline(SECONDS, clock), Found()
        examination = Examination(
            apparatus, STAGES, data.start, found, deadline=deadline, progress=lambda _, __, text: texts.update([text])
        )
        for _ in examination:
            clock.time += step_s
        assert examination.is_over
        return found, clock.time, texts

    return examine


@pytest.mark.parametrize(
    "step_s", [0.05, 7.0, 200.0, *(pytest.param(each, marks=pytest.mark.variation) for each in (0.4, 2.5, 21.0))]
)
def test_all_rounds_share_one_deadline_whatever_a_step_takes(
    examined: Callable[[float], tuple[Found, float, Counter[str]]], step_s: float
) -> None:
    found, ended, texts = examined(step_s)
    # A step that has begun is not interrupted here. After the deadline, none begins.
    assert ended <= SECONDS + step_s
    assert sum(each.num_steps for each in found.rounds) <= SECONDS / step_s + 1
    assert len(texts) <= NUM_ROUNDS * len(STAGES) + 2
    if step_s <= 7.0:
        begun = {text.partition(": ")[2] for text in texts}
        assert begun >= {MEANINGS[each.way] for each in essential(STAGES)}, "each way has a round if there is time"
    assert all(each.step_s == pytest.approx(step_s) for each in found.rounds)
    if step_s <= 0.4:
        assert {each.number for each in found.rounds} == set(range(NUM_ROUNDS))


def test_a_pass_without_time_for_all_stages_keeps_one_of_each_way(
    examined: Callable[[float], tuple[Found, float, Counter[str]]],
) -> None:
    found, _, _ = examined(7.0)
    assert found.stages == essential(STAGES)
    assert RoundKind(way=Way.COMPUTE, is_small=True) not in {each.stage for each in found.rounds}
