from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray._private import state as ray_state

from forebay.errors import ScoringFailed
from forebay.llm.score.engines.engine import Engine, Prompt, RowAnswer, Sampling
from forebay.llm.score.pool.counters import ScoreProgress
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows

Requests = Callable[..., ScoreRequest]
ROWS = 48


class LightEngine:
    """Repeats the prompt: an engine that starts at once. Its process ends on some rows."""

    def __init__(self, fatal: frozenset[int]) -> None:
        self._fatal = fatal

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        if {prompt.row for prompt in prompts} & self._fatal:
            os._exit(3)
        return [RowAnswer(text=f"{prompt.content} {prompt.row}", finish_reason="stop") for prompt in prompts]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class LightSpec:
    fatal: frozenset[int] = frozenset()
    is_fatal_at_start: bool = False

    def identity(self) -> Mapping[str, Any]:
        return {"engine": "light"}

    def check(self) -> None:
        pass

    def open(self) -> Engine:
        if self.is_fatal_at_start:
            os._exit(3)
        return LightEngine(self.fatal)  # type: ignore[return-value]


@pytest.fixture
def light(tmp_path: Path) -> Callable[..., ScoreRequest]:
    pq.write_table(pa.table({"prompt": [f"text {row}" for row in range(ROWS)]}), tmp_path / "rows.parquet")

    def make(name: str = "answers", **options: Any) -> ScoreRequest:
        given = {"model": "light", "data": str(tmp_path / "rows.parquet"), "to": str(tmp_path / name)}
        return ScoreRequest(**(given | {"shard_rows": 4} | options))

    return make


def actor_processes() -> list[int]:
    """Processes of the pool."""
    actors = [each for each in ray_state.actors().values() if each["State"] == "ALIVE"]
    return [each["Pid"] for each in actors if "ScoreActor" in each["ActorClassName"]]


class Killer:
    """Listener that kills a process of the pool each time that it is called, `times` times."""

    def __init__(self, times: int) -> None:
        self.killed: list[int] = []
        self._times, self._random = times, np.random.default_rng(0)

    def __call__(self, progress: ScoreProgress) -> None:
        living = [process for process in actor_processes() if process not in self.killed]
        if len(self.killed) < self._times and living:
            self.killed.append(int(self._random.choice(living)))
            os.kill(self.killed[-1], signal.SIGKILL)


def test_workers_that_are_killed_change_no_answer(ray_session: None, light: Requests) -> None:
    whole = score_rows(light("whole"), engine=LightSpec()).read()
    result = score_rows(light(workers=2), engine=LightSpec(), listener=Killer(2))
    assert result.read().equals(whole)
    assert result.rows_scored == ROWS


def test_row_that_ends_its_process_is_marked(ray_session: None, light: Requests) -> None:
    whole = score_rows(light("whole", shard_rows=24), engine=LightSpec()).read().to_pylist()
    result = score_rows(light(workers=2, shard_rows=24), engine=LightSpec(fatal=frozenset({29})))
    found = result.read().to_pylist()
    assert [each["row"] for each in found] == list(range(ROWS))
    assert found[29]["error"].startswith("the engine was lost twice on this row: its process ended")
    assert [each for each in found if each["row"] != 29] == [each for each in whole if each["row"] != 29]


@pytest.mark.variation
def test_engine_that_cannot_be_opened_ends_the_run(ray_session: None, light: Requests) -> None:
    with pytest.raises(ScoringFailed, match="6 workers one after the other were lost while they opened their engine"):
        score_rows(light(workers=2), engine=LightSpec(is_fatal_at_start=True))


@pytest.mark.variation
def test_models_that_are_killed_change_no_answer(ray_session: None, request_of: Requests) -> None:
    whole = score_rows(request_of(to=f"{request_of().to}-whole")).read()
    killer = Killer(3)
    result = score_rows(request_of(workers=2, shard_rows=10), listener=killer)
    assert len(killer.killed) == 3 == result.workers_lost
    assert result.read().equals(whole)
