"""`forebay llm score engine=vllm` beside `ray.data.llm`: the same vLLM, model, prompts and greedy answers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from bench.processes import command, environment
from bench.score.data import write_questions
from bench.score.faults import KilledJob, forebay_job, texts_of
from forebay.llm.source.tokenizers import load_folder

FEW = 256
"""Rows of the short run, whose time is the start."""
BATCH = 64
_TURN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of a run, and CPU seconds of all of its processes."""

    wall_s: float
    cpu_s: float


def vllm_job(model: Path, data: Path, folder: Path) -> KilledJob:
    """`forebay llm score` with vLLM, in one worker, greedy."""
    return forebay_job(model, data, folder, workers=1, engine="vllm", temperature=0.0, batch=BATCH)


def ray_data_llm_job(model: Path, data: Path, folder: Path, *, is_checkpointed: bool = False) -> KilledJob:
    """`ray.data.llm`, started again as it is, or with Ray Data's checkpoints."""
    more = ["--checkpoint"] * is_checkpointed
    return KilledJob(
        name="ray.data.llm, checkpoints" if is_checkpointed else "ray.data.llm",
        command=command("bench.score.ray_data_llm", model, data, folder, *more),
        actors="MapWorker",
        folder=folder,
    )


def print_beside(model: Path, cache: Path, rows: int) -> None:
    """Print the cost of both, and how many answers are equal."""
    made: dict[str, Path] = {}
    for name, job_of in (("forebay", vllm_job), ("ray.data.llm", ray_data_llm_job)):
        costs = {}
        for count in (FEW, rows):
            data = cache / f"questions-{count}.parquet"
            write_questions(data, count)
            made[name] = cache / f"beside-{name}-{count}"
            costs[count] = measured(job_of(model, data, made[name]).command)
        start, all_rows = costs[FEW], costs[rows]
        per_row = 1000 / (rows - FEW)
        print(
            f"{name}: {rows} rows in {all_rows.wall_s:.1f} s and {all_rows.cpu_s:.1f} CPU s; {FEW} rows in "
            f"{start.wall_s:.1f} s and {start.cpu_s:.1f} CPU s; each further 1,000 rows "
            f"{per_row * (all_rows.wall_s - start.wall_s):.2f} s and "
            f"{per_row * (all_rows.cpu_s - start.cpu_s):.2f} CPU s",
            flush=True,
        )
    _print_equal(model, made["forebay"], made["ray.data.llm"])


def measured(line: Sequence[str]) -> Cost:
    """Run a program, and return its cost."""
    began, spent = time.monotonic(), dict[tuple[int, float], float]()
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=sys.stderr, env=environment())  # noqa: S603
    tree = psutil.Process(child.pid)
    while child.poll() is None:
        with suppress(psutil.NoSuchProcess):
            for each in (tree, *tree.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    spent[each.pid, each.create_time()] = sum(each.cpu_times()[:2])
        time.sleep(_TURN_S)
    if child.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {child.returncode}")
    return Cost(wall_s=time.monotonic() - began, cpu_s=sum(spent.values()))


def _print_equal(model: Path, ours: Path, theirs: Path) -> None:
    expected, found = dict(texts_of(ours)), dict(texts_of(theirs))
    tokenizer = load_folder(str(model))
    tokens = {
        number: ids
        for path in theirs.glob("**/*.parquet")
        for number, ids in zip(*(pq.read_table(path)[name].to_pylist() for name in ("id", "tokens")), strict=True)
    }
    same_text = sum(found[number] == text for number, text in expected.items())
    decoded = {number: tokenizer.decode(ids, skip_special_tokens=True) for number, ids in tokens.items()}
    same_tokens = sum(decoded[number] == text for number, text in expected.items())
    print(f"of {len(expected)} answers, {same_text} texts are equal, and {same_tokens} tokens, decoded by one program")
