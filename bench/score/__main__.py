"""Entry: `python -m bench.score [--rows N] [--kills N] [--seconds S] [--cache FOLDER] [PART]...`.

Parts: batches and faults, which are run if none is named; peers (Ray Data); vllm and vllm-faults (`ray.data.llm`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from bench.score.batches import own_rates, plain_rates, prompts_of, short_prompts
from bench.score.beside_vllm import print_beside, ray_data_llm_job, vllm_job
from bench.score.data import write_model, write_questions
from bench.score.faults import describe, forebay_job, ray_data_job, run_with_kills, texts_of
from bench.score.ray_data_llm import NUM_CPUS

BATCHES = (1, 8, 16, 32, 64, 128)
MAX_TOKENS = 12
PARTS = ("batches", "faults", "peers", "vllm", "vllm-faults")
WIDE_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
"""Heads of 32: vLLM takes no smaller ones on processors."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["batches", "faults"], choices=PARTS)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3600.0, help="end the runs with kills, to go on another time")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "forebay-bench-score")
    asked = parser.parse_args()
    model, data = asked.cache / "model", asked.cache / f"questions-{asked.rows}.parquet"
    write_model(model)
    write_questions(data, asked.rows)
    if "batches" in asked.parts:
        _print_rates(model, data, asked.rows)
    if "faults" in asked.parts or "peers" in asked.parts:
        _kill(asked, model, data)
    if {"vllm", "vllm-faults"} & set(asked.parts):
        _beside_vllm(asked, asked.cache / "model-heads-32", data)


def _beside_vllm(asked: argparse.Namespace, model: Path, data: Path) -> None:
    write_model(model, **WIDE_HEADS)
    if "vllm" in asked.parts:
        print_beside(model, asked.cache, asked.rows)
    if "vllm-faults" in asked.parts:
        expected = dict(texts_of(asked.cache / f"beside-forebay-{asked.rows}"))
        jobs = [vllm_job(model, data, asked.cache / "vllm-killed")]
        jobs += [ray_data_llm_job(model, data, asked.cache / "ray-llm")]
        jobs += [ray_data_llm_job(model, data, asked.cache / "ray-llm-kept", is_checkpointed=True)]
        for job in jobs:
            once = replace(job, kinds=("driver",), node_cpus=NUM_CPUS)
            print(json.dumps(describe(run_with_kills(once, expected, 1, asked.seconds))), flush=True)


def _print_rates(model: Path, data: Path, rows: int) -> None:
    torch.set_num_threads(1)
    prompts = prompts_of(data, rows)
    parts = (("forebay", own_rates, prompts), ("generate", plain_rates, prompts))
    for name, rates, asked in (*parts, ("forebay, short prompts", own_rates, short_prompts(prompts))):
        for rate in rates(model, asked, BATCHES, MAX_TOKENS):
            print(
                f"{name} batch {rate.batch:4}: {rate.requests_per_s:7.0f} requests and "
                f"{rate.tokens_per_s:7.0f} tokens per CPU second",
                flush=True,
            )


def _kill(asked: argparse.Namespace, model: Path, data: Path) -> None:
    undisturbed = forebay_job(model, data, asked.cache / "undisturbed", workers=1)
    subprocess.run(undisturbed.command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program
    expected = dict(texts_of(undisturbed.folder))
    jobs = [forebay_job(model, data, asked.cache / "killed")] if "faults" in asked.parts else []
    if "peers" in asked.parts:
        jobs += [ray_data_job(model, data, asked.cache / "ray-data", is_checkpointed=False)]
        jobs += [ray_data_job(model, data, asked.cache / "ray-data-kept", is_checkpointed=True)]
    for job in jobs:
        print(json.dumps(describe(run_with_kills(job, expected, asked.kills, asked.seconds))), flush=True)


if __name__ == "__main__":
    main()
