"""Scoring with `ray.data.llm`, as its users write it: `python -m bench.score.ray_data_llm MODEL DATA TO`.

Model, prompts and sampling are as in `forebay llm score engine=vllm temperature=0`,
so that the answers can be compared.
Without a GPU the stage of vLLM needs `placement_group_config`. Its stages are five processes of one CPU each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from bench.score.faults import MAX_TOKENS
from bench.score.ray_data import arguments, keep_checkpoints

BATCH, CACHE_BYTES, BLOCKS = 64, 1 << 30, 20
NUM_CPUS = 8
"""CPUs that a cluster of its own has, whatever the machine has: with fewer than about 8, stages wait for each other."""


def question(row: dict[str, Any]) -> dict[str, Any]:
    """Request of a row: all turns but the answer."""
    turns = [dict(turn) for turn in row["messages"]][:-1]
    return {"id": row["id"], "messages": turns, "sampling_params": {"temperature": 0.0, "max_tokens": MAX_TOKENS}}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """Row of the answers."""
    return {"id": row["id"], "text": row["generated_text"], "tokens": row["generated_tokens"]}


def main() -> None:
    asked = arguments(__doc__)
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig  # noqa: PLC0415 - needs vllm

    here = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": NUM_CPUS, "include_dashboard": False}
    ray.init(**here, runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path.cwd()))}})
    if asked.checkpoint:
        keep_checkpoints(asked.to)
    config = vLLMEngineProcessorConfig(
        model_source=asked.model,
        concurrency=1,
        batch_size=BATCH,
        placement_group_config={"bundles": [{"CPU": 1}]},
        log_engine_metrics=False,
        engine_kwargs={
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": BATCH,
            "kv_cache_memory_bytes": CACHE_BYTES,
        },
    )
    answers = build_processor(config, preprocess=question, postprocess=answer)
    answers(ray.data.read_parquet(asked.data, override_num_blocks=BLOCKS)).write_parquet(str(asked.to))


if __name__ == "__main__":
    main()
