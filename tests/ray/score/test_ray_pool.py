from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray._private import state as ray_state

from forebay.errors import ScoringFailed
from forebay.score.engines.engine import Engine, Prompt, RowAnswer, Sampling
from forebay.score.engines.hf import HfEngineSpec
from forebay.score.pool.tally import ScoreProgress
from forebay.score.request import ScoreRequest
from forebay.score.scoring import score_rows

Requests = Callable[..., ScoreRequest]


class FatalEngine:
    """Engine hf, whose process ends on some rows."""

    def __init__(self, spec: FatalSpec) -> None:
        self._spec, self._engine = spec, HfEngineSpec(model=spec.model).open()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        if {prompt.row for prompt in prompts} & self._spec.fatal:
            os._exit(3)
        return self._engine.generate(prompts, sampling)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class FatalSpec:
    model: str
    fatal: frozenset[int] = frozenset()
    is_fatal_at_start: bool = False

    def identity(self) -> Mapping[str, Any]:
        return HfEngineSpec(model=self.model).identity()

    def check(self) -> None:
        pass

    def open(self) -> Engine:
        if self.is_fatal_at_start:
            os._exit(3)
        return FatalEngine(self)  # type: ignore[return-value]


def actor_processes() -> list[int]:
    """Processes of the pool."""
    actors = [each for each in ray_state.actors().values() if each["State"] == "ALIVE"]
    return [
        each["Address"]["Pid"] if "Pid" in each["Address"] else each["Pid"]
        for each in actors
        if "ScoreActor" in each["ActorClassName"]
    ]


def test_workers_that_are_killed_change_no_answer(ray_session: None, request_of: Requests) -> None:
    whole = score_rows(request_of(to=f"{request_of().to}-whole")).read()
    random, killed = np.random.default_rng(0), []

    def kill(progress: ScoreProgress) -> None:
        if len(killed) < 3 and (processes := actor_processes()):
            killed.append(random.choice(processes))
            os.kill(killed[-1], signal.SIGKILL)

    result = score_rows(request_of(workers=2, shard_rows=10), listener=kill)
    assert len(killed) == 3 == result.workers_lost
    assert result.read().equals(whole)
    assert result.rows_scored == 48


def test_row_that_ends_its_process_is_marked_and_a_bad_start_is_an_error(
    ray_session: None, request_of: Requests, model_folder: Path
) -> None:
    whole = score_rows(request_of(to=f"{request_of().to}-whole", shard_rows=24)).read().to_pylist()
    result = score_rows(
        request_of(workers=2, shard_rows=24), engine=FatalSpec(str(model_folder), fatal=frozenset({29}))
    )
    found = result.read().to_pylist()
    assert [each["row"] for each in found] == list(range(48))
    assert found[29]["error"].startswith("the engine was lost twice on this row: its process ended")
    assert [each for each in found if each["row"] != 29] == [each for each in whole if each["row"] != 29]


@pytest.mark.variation
def test_engine_that_cannot_be_opened_ends_the_run(ray_session: None, request_of: Requests, model_folder: Path) -> None:
    with pytest.raises(ScoringFailed, match="6 workers one after the other were lost while they opened their engine"):
        score_rows(request_of(workers=2), engine=FatalSpec(str(model_folder), is_fatal_at_start=True))
