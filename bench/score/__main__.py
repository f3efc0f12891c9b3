"""Entry: `python -m bench.score [--rows N] [--kills N] [--cache FOLDER] [batches|faults]...`."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from bench.score.batches import own_rates, plain_rates, prompts_of
from bench.score.data import write_model, write_questions
from bench.score.faults import run_with_kills

BATCHES = (1, 8, 16, 32, 64, 128)
MAX_TOKENS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["batches", "faults"], choices=["batches", "faults"])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "forebay-bench-score")
    asked = parser.parse_args()
    model, data = asked.cache / "model", asked.cache / f"questions-{asked.rows}.parquet"
    write_model(model)
    write_questions(data, asked.rows)
    if "batches" in asked.parts:
        torch.set_num_threads(1)
        prompts = prompts_of(data, asked.rows)
        for name, rates in (("forebay", own_rates), ("generate", plain_rates)):
            for rate in rates(model, prompts, BATCHES, MAX_TOKENS):
                print(
                    f"{name:9} batch {rate.batch:4}: {rate.requests_per_s:7.0f} requests and "
                    f"{rate.tokens_per_s:7.0f} tokens per CPU second",
                    flush=True,
                )
    if "faults" in asked.parts:
        with tempfile.TemporaryDirectory() as folder:
            found = run_with_kills(model, data, Path(folder), asked.kills)
        print(json.dumps(asdict(found), indent=2))


if __name__ == "__main__":
    main()
