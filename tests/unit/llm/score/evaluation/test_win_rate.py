from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.score.engines.engine import Engine, Prompt, RowAnswer, Sampling
from forebay.llm.score.evaluation.exact_match import ExactMatchRequest, count_exact_matches
from forebay.llm.score.evaluation.win_rate import WinRate, WinRateRequest, measure_win_rate
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows

Requests = Callable[..., ScoreRequest]
QUESTIONS = ["longer", "first", "broken", "same", "longer"]


class RuleEngine:
    """Answers by rules, and judges: the longer answer, the first one, no JSON, or a tie, as the question says."""

    def __init__(self, text: str) -> None:
        self._text = text

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        if sampling.schema is None:
            return [RowAnswer(text=self._text, finish_reason="stop") for _ in prompts]
        return [RowAnswer(text=self._verdict(str(prompt.content)), finish_reason="stop") for prompt in prompts]

    def close(self) -> None:
        pass

    def _verdict(self, text: str) -> str:
        question = text.partition("Question:\\n")[2].partition("\\n")[0]
        a = text.partition("Answer A:\\n")[2].partition("\\n")[0]
        b = text.partition("Answer B:\\n")[2].partition("\\n")[0]
        winners = {"longer": "A" if len(a) > len(b) else "B", "first": "A", "same": "tie"}
        return f'{{"winner": "{winners[question]}"}}' if question in winners else "A, I think"


@dataclass(frozen=True)
class RuleSpec:
    text: str = ""

    def identity(self) -> Mapping[str, Any]:
        return {"rules": self.text}

    def check(self) -> None:
        pass

    def open(self) -> Engine:
        return RuleEngine(self.text)  # type: ignore[return-value]


@pytest.fixture
def judged(request_of: Requests, write_rows: Callable[..., str], tmp_path: Path) -> WinRateRequest:
    data = write_rows({"question": QUESTIONS, "source": ["x", "x", "y", "y", "y"]})
    for name, text in (("ours", "a long answer"), ("theirs", "short")):
        score_rows(request_of(data=data, to=str(tmp_path / name), keep=("source",)), engine=RuleSpec(text))
    return WinRateRequest(
        answers=str(tmp_path / "ours"),
        against=str(tmp_path / "theirs"),
        data=data,
        judge="rules",
        to=str(tmp_path / "judged"),
        by="source",
        prompt="question",
    )


def test_both_orders_decide_and_a_contradiction_is_a_tie(judged: WinRateRequest) -> None:
    found = measure_win_rate(judged, engine=RuleSpec())
    assert found.total == WinRate(wins=2, losses=0, ties=2, invalid=1)
    assert found.by == {"x": WinRate(wins=1, losses=0, ties=1), "y": WinRate(wins=1, losses=0, ties=1, invalid=1)}
    assert found.total.share == 0.75
    assert found.total.interval[0] < 0.75 < found.total.interval[1]
    # A second time nothing is judged: the pairs are the same file.
    assert measure_win_rate(judged, engine=RuleSpec()) == found


def test_answers_to_other_data_and_unfinished_runs_are_refused(
    judged: WinRateRequest, request_of: Requests, tmp_path: Path
) -> None:
    score_rows(request_of(to=str(tmp_path / "others")), engine=RuleSpec("x"))
    other = WinRateRequest(
        answers=judged.answers, against=str(tmp_path / "others"), data=judged.data, judge="r", to=judged.to
    )
    with pytest.raises(InvalidOption, match="answers data .*, and .* is data"):
        measure_win_rate(other, engine=RuleSpec())
    Path(judged.against, "shard-00000000.parquet").unlink()
    with pytest.raises(InvalidOption, match="has answers to 0 of 5 rows: its run has not ended"):
        measure_win_rate(judged, engine=RuleSpec())
    with pytest.raises(InvalidOption, match="it is not the folder of a scoring run"):
        count_exact_matches(ExactMatchRequest(answers=str(tmp_path), expected="x"))
    with pytest.raises(InvalidOption, match="template= has the fields question, and needs"):
        WinRateRequest(answers="a", against="b", data="d", judge="j", to="t", template="{question}")


def test_exact_match_with_a_column_and_with_the_last_turn(
    request_of: Requests, write_rows: Callable[..., str], tmp_path: Path
) -> None:
    turns = [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": each}] for each in ("yes", "no", "yes ")
    ]
    shared = [[{"from": "human", "value": "q"}, {"from": "gpt", "value": turn[-1]["content"]}] for turn in turns]
    columns = {"messages": turns, "conversations": shared, "right": ["yes", "yes", None]}
    score_rows(
        request_of(data=write_rows(columns), prompt="messages", keep=tuple(columns), to=str(tmp_path / "a")),
        engine=RuleSpec("yes"),
    )
    by_turn, by_shared, by_column = (
        count_exact_matches(ExactMatchRequest(answers=str(tmp_path / "a"), expected=each)) for each in columns
    )
    assert (by_turn.matches, by_turn.rows, by_shared.matches, by_column.matches) == (2, 3, 2, 2)
    assert by_turn.interval[0] < by_turn.share < by_turn.interval[1]


@pytest.mark.variation
def test_judge_with_a_schema_counts_what_is_no_verdict(
    request_of: Requests, write_rows: Callable[..., str], model_folder: Path
) -> None:
    """The hf engine holds itself to a schema of few values. What is cut has an error."""
    data = write_rows({"question": ["good?", "bad?"]})
    few = {"type": "object", "properties": {"score": {"enum": [1, 2, 3]}}, "required": ["score"]}
    base = {"data": data, "task": "judge", "max_tokens": 20}
    found = score_rows(request_of(**base, schema=json.dumps(few)))
    assert {json.loads(each)["score"] for each in found.read()["verdict"].to_pylist()} <= {1, 2, 3}
    assert found.errors == 0
    cut = base | {"max_tokens": 2, "schema": json.dumps(few), "to": f"{request_of().to}-cut"}
    other = score_rows(request_of(**cut))
    assert other.errors == 2
    for error in other.read()["error"].to_pylist():
        assert error.startswith("the answer is not JSON") and error.endswith("cut at max_tokens=2: raise it.")
