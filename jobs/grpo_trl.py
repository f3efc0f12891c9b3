"""Train with GRPO of the TRL library, on prompts and rewards of Forebay.

pip install trl datasets
accelerate launch jobs/grpo_trl.py --model /models/mine --judge /models/judge --data s3://lake/questions --to runs/grpo

The same command goes on after a kill: TRL at its newest checkpoint, and no reward that was given is asked for again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption
from forebay.llm.score import HfEngineSpec, Sampling
from forebay.llm.score.evaluation.reward import Rewards, prompt_rows
from forebay.llm.score.tasks import ScoreTask

SCHEMA = {"type": "object", "properties": {"score": {"enum": [0, 1, 2, 3]}}, "required": ["score"]}
"""Form of a verdict: few values, which the engine `hf` is held to."""


def judged(prompt: Any, completion: Any, row: Mapping[str, Any]) -> list[dict[str, str]]:  # noqa: ARG001
    """Question of the judge. Change it, and use columns of the row, such as a reference answer."""
    question, answer = (each if isinstance(each, str) else each[-1]["content"] for each in (prompt, completion))
    text = f'Question: {question}\nAnswer: {answer}\nGive the answer 0 to 3 points, as {{"score": 3}}.'
    return [{"role": "user", "content": text}]


def score_of(verdict: Mapping[str, float]) -> float:
    """Reward of a verdict, 0 to 1."""
    return verdict["score"] / 3


def rewards(judge: str, to: str, *, rank: int = 0) -> Rewards:
    """Reward function of a judge."""
    task = ScoreTask(kind="judge", sampling=Sampling(max_tokens=16, schema=SCHEMA))
    return Rewards(engine=HfEngineSpec(model=judge), task=task, ask=judged, value=score_of, to=to, rank=rank)


def main(words: Sequence[str] | None = None) -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--model", "--judge", "--data", "--to"):
        parser.add_argument(name, required=True)
    parser.add_argument("--generations", type=int, default=8)
    given = parser.parse_args(words)
    rows = list(prompt_rows(given.data))
    reward = rewards(given.judge, f"{given.to}/rewards", rank=int(os.environ.get("RANK", "0")))
    try:
        import datasets  # noqa: PLC0415 - not a dependency of Forebay
        import trl  # noqa: PLC0415 - not a dependency of Forebay
    except ImportError as error:
        raise InvalidOption(
            f"GRPO needs the packages trl and datasets ({error}). Run: pip install trl datasets"
        ) from error
    trainer = trl.GRPOTrainer(
        model=given.model,
        reward_funcs=reward,
        args=trl.GRPOConfig(output_dir=given.to, num_generations=given.generations, save_steps=50, seed=0),
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.train(resume_from_checkpoint=any(Path(given.to).glob("checkpoint-*")))
    trainer.save_model()
    print(f"{len(rows)} prompts, {reward.counts}")


if __name__ == "__main__":
    main()
