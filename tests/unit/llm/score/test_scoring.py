from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.sources.scan import scan
from forebay.errors import EngineFailed, InvalidOption, MissingColumn, ScoringFailed
from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.engines.engine import Engine, Prompt, RowAnswer, Sampling
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.score.pool.counters import ScoreProgress
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.runtime.late_import import plain

Requests = Callable[..., ScoreRequest]


class FaultyEngine:
    """Engine hf, whose calls fail for some prompts."""

    def __init__(self, spec: FaultySpec) -> None:
        self._spec, self._engine = spec, HfEngineSpec(model=spec.model, batch=8).open()

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        rows = {prompt.row for prompt in prompts}
        if rows & self._spec.breaks_engine:
            raise EngineFailed(f"broke on {sorted(rows & self._spec.breaks_engine)}")
        if rows & self._spec.raises:
            raise RuntimeError(f"no answer for {sorted(rows & self._spec.raises)}")
        return self._engine.generate(prompts, sampling)

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]:
        raise InvalidOption("not here")

    def embed(self, prompts: Sequence[Prompt], pooling: str) -> list[RowAnswer]:
        raise InvalidOption("not here")

    def close(self) -> None:
        self._spec.closed.append(True)


@dataclass(frozen=True)
class FaultySpec:
    model: str
    raises: frozenset[int] = frozenset()
    breaks_engine: frozenset[int] = frozenset()
    closed: list[bool] = field(default_factory=list)

    def identity(self) -> Mapping[str, Any]:
        return HfEngineSpec(model=self.model).identity()

    def check(self) -> None:
        pass

    def open(self) -> Engine:
        return FaultyEngine(self)  # type: ignore[return-value]


class Unopened(FaultySpec):
    def open(self) -> Engine:
        raise AssertionError("no engine is needed")


def test_every_row_is_there_once_in_the_order_of_the_source(request_of: Requests) -> None:
    request = request_of(keep=("id",))
    result = score_rows(request)
    answers = result.read()
    assert answers["row"].to_pylist() == list(range(48))
    assert answers["id"].to_pylist() == [f"row-{row}" for row in range(48)]
    assert answers.column_names == ["row", "id", "text", "finish_reason", "input_tokens", "output_tokens", "error"]
    assert answers["error"].null_count == 48
    assert sorted(path.name for path in Path(request.to).iterdir()) == [
        "plan.json",
        "scores.html",
        *(f"shard-{shard:08d}.parquet" for shard in range(5)),
    ]
    assert (result.rows, result.rows_scored, result.errors, result.workers_lost) == (48, 48, 0, 0)
    assert result.output_tokens == sum(answers["output_tokens"].to_pylist())
    assert scan(request.to).num_rows == 48


def test_rerun_scores_nothing_and_opens_no_engine(request_of: Requests, model_folder: Path) -> None:
    first = score_rows(request_of())
    again = score_rows(request_of(batch=4, workers=3), engine=Unopened(str(model_folder)))
    assert (again.rows_scored, again.rows_before) == (0, 48)
    assert again.read().equals(first.read())
    page = Path(request_of().to, "scores.html")
    page.unlink()  # as a kill after the last shard leaves the folder
    score_rows(request_of(), engine=Unopened(str(model_folder)))
    assert "48, of which this run scored 0" in page.read_text()


def test_an_empty_folder_is_not_the_root_of_the_disk(request_of: Requests) -> None:
    with pytest.raises(InvalidOption, match="to='' names no folder"):
        score_rows(request_of(to=""))


def test_missing_shards_are_scored_again_and_alike(request_of: Requests) -> None:
    whole = score_rows(request_of()).read()
    lost = Path(request_of().to)
    (lost / "shard-00000001.parquet").unlink()
    (lost / "shard-00000004.parquet").unlink()
    (lost / ".shard-00000004.parquet.draft").touch()
    again = score_rows(request_of(batch=3))
    assert (again.rows_scored, again.rows_before) == (18, 30)
    assert again.read().equals(whole)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 4}, "sampling"),
        pytest.param({"prompt": "messages"}, "prompt", marks=pytest.mark.variation),
        pytest.param({"shard_rows": 9}, "shard_rows", marks=pytest.mark.variation),
        pytest.param({"keep": ("id",)}, "keep", marks=pytest.mark.variation),
        pytest.param({"dtype": "bfloat16"}, "dtype", marks=pytest.mark.variation),
        pytest.param({"task": "embed"}, "task", marks=pytest.mark.variation),
    ],
)
def test_another_plan_in_the_folder_is_refused_with_both(
    request_of: Requests, change: dict[str, Any], name: str
) -> None:
    request = request_of(max_tokens=1, data=f"{request_of().data}/1.parquet")
    score_rows(request)
    with pytest.raises(
        InvalidOption, match=f"holds the output of plan .* this run has plan .*{name} .* there"
    ) as error:
        score_rows(replace(request, **change))
    assert name in error.value.differing  # type: ignore[operator]


@pytest.mark.variation
def test_changed_data_and_model_are_another_plan(request_of: Requests, model_folder: Path) -> None:
    request = request_of(max_tokens=1, data=f"{request_of().data}/1.parquet")
    score_rows(request)
    table = pq.read_table(request.data)
    pq.write_table(table, request.data, row_group_size=5)
    with pytest.raises(InvalidOption, match="data .* there"):
        score_rows(request)


def test_rows_without_a_prompt_and_prompts_that_fail_have_an_error(
    request_of: Requests, write_rows: Callable[..., str], model_folder: Path
) -> None:
    texts = ["one", None, "  ", "b " * 5000, "five", "six"]
    request = request_of(data=write_rows({"question": texts}))
    result = score_rows(request, engine=FaultySpec(str(model_folder), raises=frozenset({4})))
    errors = result.read()["error"].to_pylist()
    assert errors[0] is None and errors[5] is None
    assert "is null" in errors[1] and "is empty" in errors[2] and "positions" in errors[3]
    assert errors[4] == "the engine failed: RuntimeError: no answer for [4]"
    assert result.errors == 4
    assert result.read()["text"].to_pylist()[4] is None


def test_max_errors_ends_the_run_and_keeps_what_is_written(
    request_of: Requests, write_rows: Callable[..., str], model_folder: Path
) -> None:
    data = write_rows({"question": ["one"] * 25 + [None] * 5})
    score_rows(request_of(data=data, to=f"{request_of().to}-5", max_errors=5))
    with pytest.raises(ScoringFailed, match=r"5 rows have an error, and max_errors=4. The newest: .* is null"):
        score_rows(request_of(data=data, max_errors=4))
    assert AnswerFolder(uri=request_of().to, plan="").existing() == {0, 1, 2}


def test_engine_that_fails_is_opened_again_and_the_row_is_found(request_of: Requests, model_folder: Path) -> None:
    expected = score_rows(request_of(to=f"{request_of().to}-whole")).read()["text"].to_pylist()
    spec = FaultySpec(str(model_folder), breaks_engine=frozenset({23}))
    result = score_rows(request_of(), engine=spec)
    answers = result.read()
    assert answers["row"].to_pylist() == list(range(48))
    assert answers["error"].to_pylist()[23] == "the engine failed twice on this row: broke on [23]"
    assert answers["error"].null_count == 47
    expected[23] = None
    assert answers["text"].to_pylist() == expected
    assert result.workers_lost == len(spec.closed) - 1 > 2


def test_shard_with_other_answers_is_refused(request_of: Requests) -> None:
    result = score_rows(request_of(max_tokens=2))
    first = next(result.tables())
    folder = AnswerFolder(uri=result.folder, plan="p")
    assert folder.write(0, first.replace_schema_metadata(None)) is False
    with pytest.raises(ScoringFailed, match="is there with answers of digest .*, and this process has digest"):
        folder.write(0, first.slice(1))
    assert replace(folder, is_exact=False).write(0, first.slice(1)) is False


@pytest.mark.variation
def test_prompts_by_template_function_and_conversation(request_of: Requests) -> None:
    base = {"data": f"{request_of().data}/1.parquet", "max_tokens": 2}

    def ask(row: dict[str, Any]) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Say {row['question']}"}]

    found = [
        score_rows(request_of(**base, to=f"{request_of().to}-{number}", **options), prompt=function).read()
        for number, (options, function) in enumerate(
            [
                ({"template": "Say {question}"}, None),
                ({"template": "Say {question}", "chat": True}, None),
                ({"prompt": None}, ask),
                ({"prompt": None}, None),
            ]
        )
    ]
    assert found[1].equals(found[2])
    assert not found[0].equals(found[1])
    assert len({table["input_tokens"][0].as_py() for table in found}) == 3


@pytest.mark.variation
def test_progress_ends_with_all_rows(request_of: Requests) -> None:
    seen: list[ScoreProgress] = []
    score_rows(request_of(), listener=seen.append)
    assert (seen[-1].rows_done, seen[-1].rows, seen[-1].workers) == (48, 48, 1)
    assert str(seen[-1]).startswith("48 of 48 rows, ") and str(seen[-1]).endswith("1 worker, 0:00 left")


def test_interrupt_leaves_whole_shards(request_of: Requests) -> None:
    def interrupt(progress: ScoreProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_rows(request_of(max_tokens=30), listener=interrupt)
    assert len(AnswerFolder(uri=request_of().to, plan="").existing()) in range(6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt": "qestion"}, "no column 'qestion' .* Did you mean 'question'"),
        ({"keep": ("text",)}, "keep= names 'text', which is a column of the answers"),
        ({"keep": ("ids",)}, "no column 'ids'"),
        pytest.param({"template": "no field"}, "needs fields that are names of columns", marks=pytest.mark.variation),
        ({"template": "{question} {answer}"}, "no column 'answer'"),
        ({"engine": "hff"}, "engine='hff' is unknown. Choose one of 'hf'"),
        ({"task": "rank"}, "task='rank' is unknown"),
        ({"task": "judge"}, "needs schema="),
        ({"schema": "{}"}, "has no schema="),
        ({"task": "judge", "schema": '{"type": "nothing"}'}, "is not a JSON schema"),
        ({"task": "judge", "schema": '{"items": [{"$ref": "http://127.0.0.1:1/s.json"}]}'}, "nothing is fetched"),
        ({"completion": "id"}, "is for task=.log_likelihood"),
        ({"workers": 0}, "workers=0"),
        ({"base_url": "http://here"}, "is not an option of engine='hf'"),
        ({"model": "tiny"}, "is not"),
    ],
)
def test_bad_input_is_found_before_an_engine_is_opened(request_of: Requests, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidOption, MissingColumn), match=says):
        score_rows(request_of(**wrong))
    assert not Path(request_of().to).exists()


def test_public_names() -> None:
    assert plain(fb.llm.score.score_rows) is score_rows
    assert [name for name in fb.llm.score.__all__ if not (getattr(fb.llm.score, name).__doc__ or "").strip()] == []


@pytest.mark.variation
def test_plan_is_read_by_people(request_of: Requests) -> None:
    score_rows(request_of(max_tokens=1))
    plan = json.loads(Path(request_of().to, "plan.json").read_text())
    assert plan["facts"]["sampling"]["max_tokens"] == 1
    assert plan["facts"]["engine"].startswith("hf 4, transformers 5.")
