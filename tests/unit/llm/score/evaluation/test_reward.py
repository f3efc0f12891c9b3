"""Prompts and rewards for trainers of others: each reward once, also after a kill."""

from __future__ import annotations

import importlib.util
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.score.engines.engine import Prompt, RowAnswer, Sampling
from forebay.llm.score.evaluation.reward import RewardCounts, Rewards, _read, prompt_rows
from forebay.llm.score.tasks import ScoreTask

SCRIPT = Path(__file__).parents[5] / "jobs" / "grpo_trl.py"
PROMPTS = [[{"role": "user", "content": f"question {number}"}] for number in range(3)]


class LengthEngine:
    """Engine whose text is the length of the prompt, and an error for one with an `x`. It keeps what it was asked."""

    asked: list[str] = []  # noqa: RUF012 - of all engines of the test

    def identity(self) -> dict[str, Any]:
        return {"engine": "length"}

    def check(self) -> None: ...

    def open(self) -> LengthEngine:
        return self

    def generate(self, prompts: list[Prompt], sampling: Sampling) -> list[RowAnswer]:
        self.asked.extend(str(each.content) for each in prompts)
        return [
            RowAnswer(error="no") if "x" in each.content else RowAnswer(text=str(len(each.content))) for each in prompts
        ]

    def close(self) -> None: ...


def joined(prompt: Any, completion: str, row: Any) -> str:
    return f"{prompt}{completion}{row.get('hint', '')}"


def as_number(answer: RowAnswer) -> float:
    return float(answer.text or 0)


def as_cost(answer: RowAnswer) -> float:
    return -float(answer.text or 0)


def rewards_in(folder: Path, rank: int = 0, value: Callable[[Any], float] = as_number) -> Rewards:
    task = ScoreTask(kind="generate")
    return Rewards(engine=LengthEngine(), task=task, ask=joined, value=value, to=str(folder), rank=rank)  # type: ignore[arg-type]


def test_each_reward_is_asked_for_once(tmp_path: Path) -> None:
    LengthEngine.asked.clear()
    first = rewards_in(tmp_path)
    assert first(["a", "bb", "a"], ["1", "2", "1"], hint=["h", "h", "h"], trainer_state=object()) == [3, 4, 3]
    assert LengthEngine.asked == ["a1h", "bb2h"]
    assert first(["a", "c"], ["1", "x"], hint=["h", "h"]) == [3, None]
    assert first.counts == RewardCounts(asked=3, known=1, errors=1)
    # A kill in the middle of a line.
    with (tmp_path / "rewards-0.jsonl").open("a") as file:
        file.write('["abc')
    again = rewards_in(tmp_path, rank=1)
    assert again(["bb", "a", "c"], ["2", "1", "x"], hint=["h", "h", "h"]) == [4, 3, None]
    assert again.counts == RewardCounts(asked=1, known=2, errors=1)
    assert again(["d"], ["1"], hint=["h"]) == [3] == rewards_in(tmp_path)(["d"], ["1"], hint=["h"])


def test_another_value_of_the_answer_is_another_reward(tmp_path: Path) -> None:
    assert rewards_in(tmp_path)(["a"], ["1"]) == [2]
    assert rewards_in(tmp_path, value=as_cost)(["a"], ["1"]) == [-2]


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "rewards-0.jsonl").write_text('["abc')
    assert rewards_in(tmp_path)(["a"], ["1"]) == [2]
    assert rewards_in(tmp_path).counts == RewardCounts()
    found = rewards_in(tmp_path)
    assert found(["a"], ["1"]) == [2] and found.counts.known == 1


def test_prompts_come_in_order_with_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"messages": [*prompt, {"role": "assistant", "content": "a"}], "hint": "h"} for prompt in PROMPTS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(prompt_rows(str(file), keep=["hint"]))
    assert found == [{"prompt": prompt, "row": row, "hint": "h"} for row, prompt in enumerate(PROMPTS)]
    with pytest.raises(InvalidOption, match="keep= names 'other'"):
        next(prompt_rows(str(file), keep=["other"]))
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps({"messages": []}) + "\n")
    with pytest.raises(InvalidOption, match="row 1 of .* has no prompt"):
        list(prompt_rows(str(file)))


def test_tools_beside_a_prompt_are_not_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    file.write_text(json.dumps({"prompt": PROMPTS[0], "tools": tools}) + "\n")
    with pytest.raises(InvalidOption, match="row 0 of .* has 'tools', which is no part of its messages"):
        list(prompt_rows(str(file)))
    assert next(prompt_rows(str(file), keep=["tools"]))["tools"] == tools


def test_judge_of_the_script_gives_rewards(model_folder: Path, tmp_path: Path) -> None:
    reward = runpy.run_path(str(SCRIPT))["rewards"](str(model_folder), str(tmp_path))
    found = reward(PROMPTS, [[{"role": "assistant", "content": "yes"}]] * 3)
    assert all(each in {0, 1 / 3, 2 / 3, 1} for each in found)
    assert reward(PROMPTS[:1], [[{"role": "assistant", "content": "yes"}]]) == found[:1]
    assert reward.counts == RewardCounts(asked=3, known=1)
    reward.close()


@pytest.mark.skipif(importlib.util.find_spec("trl") is not None, reason="the package trl is installed")
def test_missing_trainer_is_named(model_folder: Path, questions: Path, tmp_path: Path) -> None:
    words = ["--model", "m", "--judge", str(model_folder), "--data", str(questions), "--to", str(tmp_path)]
    with pytest.raises(InvalidOption, match="GRPO needs the packages trl and datasets"):
        runpy.run_path(str(SCRIPT))["main"](words)


@pytest.mark.parametrize("line", [b'["a", 0.', b"3", b'["a"]', b'["a", null]', b'{"a": 1}', b"\xff\xfe", b""])
def test_lines_that_are_no_rewards_are_passed_over(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rewards-0.jsonl"
    path.write_bytes(line + b'\n["b", 0.5]\n')
    assert [*_read(path)] == [("b", 0.5)]
