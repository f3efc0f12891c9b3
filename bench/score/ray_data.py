"""Scoring with `map_batches` of Ray Data, as its users write it: `python -m bench.score.ray_data MODEL DATA TO`.

The model, the prompts and the draws equal `forebay llm score`'s, so that the texts can be compared.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ray

BATCH, WORKERS = 250, 2


class Scorer:
    """Actor of Ray Data: answers a batch, and counts its rows in a file."""

    def __init__(self, model: str, log: str) -> None:
        from forebay.llm.score.engines.hf import HfEngineSpec  # noqa: PLC0415 - in the actor alone

        self._engine, self._log = HfEngineSpec(model=model).open(), log

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from bench.score.faults import MAX_TOKENS  # noqa: PLC0415 - in the actor alone
        from forebay.llm.score.engines.engine import Prompt, Sampling  # noqa: PLC0415

        rows = zip(batch["id"].tolist(), batch["messages"], strict=True)
        prompts = [Prompt(row=row, content=[dict(turn) for turn in turns][:-1]) for row, turns in rows]
        answers = self._engine.generate(prompts, Sampling(max_tokens=MAX_TOKENS, temperature=0.8, seed=3))
        with Path(self._log).open("a") as log:
            log.write(f"{len(prompts)}\n")
        return {"id": batch["id"], "text": [each.text for each in answers]}


def keep_checkpoints(to: Path) -> None:
    """Let Ray Data keep checkpoints beside `to`, by the column id."""
    from ray.data.checkpoint import CheckpointConfig  # noqa: PLC0415 - an option

    kept = to.with_name(f"{to.name}-checkpoint")
    kept.mkdir(parents=True, exist_ok=True)
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(kept), delete_checkpoint_on_success=False
    )


def arguments(description: str | None) -> argparse.Namespace:
    """Return the arguments of a script that scores with Ray Data."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("to", type=Path)
    parser.add_argument("--checkpoint", action="store_true", help="with checkpoints of Ray Data, by the column id")
    return parser.parse_args()


def main() -> None:
    asked = arguments(__doc__)
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path.cwd()))}})
    if asked.checkpoint:
        keep_checkpoints(asked.to)
    log = str(asked.to.with_name(f"{asked.to.name}-scored.txt"))
    ray.data.read_parquet(asked.data).map_batches(
        Scorer, fn_constructor_args=(asked.model, log), batch_size=BATCH, concurrency=WORKERS
    ).write_parquet(str(asked.to))


if __name__ == "__main__":
    main()
