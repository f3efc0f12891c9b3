"""Attention and ZeRO-3 with offload: bytes of a rank, rows that fit, CPU seconds, and what larger passes are worth.

python studies/llm_memory.py              # minutes on two cores; writes docs/experiments/llm-memory.*
python studies/llm_memory.py --report     # only the page and the picture, from the numbers
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reports.page import write_study
from torch import Tensor

import forebay as fb
from forebay import llm
from forebay.data.loader.batch import Batch
from forebay.llm.cost.memory_check import largest_batch
from forebay.llm.fine_tuning import set_up
from forebay.llm.tokens import TARGETS
from forebay.testing.data.chats import write_chats

ROOT = Path(__file__).parents[1]
GB = 10**9
LENGTHS, TIMED = (512, 1024, 2048, 4096, 8192, 16_384), (256, 512, 1024, 2048)
RANKS, DEVICE, TOKENS = (16, 32, 64, 128), 80 * GB, 4096
ATTENTION: Mapping[str, Mapping[str, Any]] = {
    "eager": {"attn": "eager", "gradient_checkpointing": False},
    "fused": {"attn": "sdpa", "gradient_checkpointing": False},
    "fused, checkpointing": {"attn": "sdpa", "gradient_checkpointing": True},
}
OFFLOAD = {"ZeRO-3": "none", "ZeRO-3, offload": "optimizer"}
PASSES, STEPS = (1, 2, 4, 8), 3
"""Rows of a pass on each of two ranks, and steps with each."""
FLOPS, NETWORK, HOST = 0.5 * 312e12, 25 * GB, 25 * GB
"""Assumed: half of an A100's peak, and bytes per second of each rank to other nodes and to main memory."""

Found = Mapping[str, Any]


def study(folder: Path) -> Found:
    """Count bytes and rows, and measure CPU seconds."""
    return {
        "kept": {name: [_kept(length, options) for length in LENGTHS] for name, options in ATTENTION.items()},
        "attention_s": {attn: [attention_s(attn, length) for length in TIMED] for attn in ("eager", "sdpa")},
        "zero3": {name: [plan_facts(offload, ranks) for ranks in RANKS] for name, offload in OFFLOAD.items()},
        "measured": {name: pass_rates(offload, folder / offload) for name, offload in OFFLOAD.items()},
    }


def _kept(length: int, options: Mapping[str, Any]) -> int:
    plan = llm.MemoryPlan(model="Llama-2-7B", seq_len=length, **options)
    return llm.estimate_memory(plan).device["activations"]


def attention_s(attn: Any, length: int) -> float:
    """Least CPU seconds of three passes, forward and backward, of the tiny model over a row that is one document."""
    torch.manual_seed(0)
    model = llm.ModelSpec(name="tiny", vocab_size=512, attn=attn).build()
    row = torch.full((1, length), 5 | 1 << 25, dtype=torch.int32)
    row[0, 0] = 5 | 1 << 24
    found = []
    for _ in range(3):
        began = time.process_time()
        llm.token_loss(model, Batch({"tokens": row}, num_rows=1, size=1)).backward()
        found.append(time.process_time() - began)
    return min(found)


def plan_facts(offload: Any, ranks: int) -> dict[str, float]:
    """Bytes of a rank with Llama-2-70B, most rows of a pass, and tokens per second of a rank by `step_s`."""
    plan = llm.MemoryPlan(
        model="Llama-2-70B",
        workers=ranks,
        strategy="zero3",
        offload=offload,
        seq_len=TOKENS,
        gradient_checkpointing=True,
        stored="bf16",
    )
    estimate, rows = llm.estimate_memory(plan), largest_batch(plan, DEVICE)
    rate = rows * TOKENS / step_s(estimate.parameters, ranks, rows, is_offloaded=offload != "none")
    return {"bytes": estimate.total, "host": estimate.host, "rows": rows, "tokens_per_s": rate}


def step_s(parameters: int, ranks: int, rows: int, *, is_offloaded: bool) -> float:
    """Seconds of a step of one pass: computed, nothing overlaps.

    Weights are gathered for the forward and the backward pass, and gradients scattered, in 2 bytes. 8 FLOPs for each
    parameter and token, with those that checkpointing repeats. An offloaded optimizer gets gradients and returns
    weights, and reads and writes 24 bytes for each parameter in main memory.
    """
    compute = 8 * parameters * rows * TOKENS / FLOPS
    network = 3 * 2 * parameters / NETWORK
    return compute + network + is_offloaded * (2 * 2 + 24) * parameters / ranks / HOST


def pass_rates(offload: Any, folder: Path) -> list[float]:
    """Tokens per CPU second of the tiny model on two ranks, by rows of a pass. The global batch stays."""
    chats = write_chats(folder / "chats", chats=600, held_out=2)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=128, overflow="split")
    tokens = llm.prepared_tokens(fb.prepare(source, into=str(folder / "prepared")))
    recipe = llm.Recipe(model=llm.ModelSpec(name="tiny", vocab_size=tokens.vocab_size))
    job = fb.Job(
        train=partial(timed_steps, recipe),
        data=fb.Data(
            plan=fb.build_plan(tokens.prepared.manifest), transform=llm.token_rows(), global_batch=2 * max(PASSES)
        ),
        workers=2,
        strategy="zero3",
        offload=offload,
        storage=str(folder / "runs"),
        cache=None,
    )
    metrics = fb.run(job, "local").epochs[0].metrics
    return [1 / metrics[f"pass_{rows}"] for rows in PASSES]


def timed_steps(recipe: llm.Recipe, worker: fb.Worker) -> None:
    """Train with passes of each size in turn, and report the CPU seconds of a token."""
    _, model, optimizer = set_up(recipe, worker)

    def loss_of(part: Batch) -> Tensor:
        return llm.token_loss(model, part)

    spent: dict[int, list[float]] = {rows: [] for rows in PASSES}
    for number, batch in enumerate(worker.loader()):
        rows, began = PASSES[number % len(PASSES)], time.process_time()
        loss = worker.backward(batch, loss_of, weigh_by=TARGETS, micro_rows=rows)
        optimizer.step()
        optimizer.zero_grad()
        if number >= len(PASSES):  # the first step of each size builds what stays
            spent[rows].append((time.process_time() - began) / batch["tokens"].numel())
        if number + 1 == len(PASSES) * (STEPS + 1):
            worker.report(**{f"pass_{size}": min(found) for size, found in spent.items()})
        worker.commit(loss=loss)


def picture(found: Found) -> Figure:
    """Bytes over the length of a row, CPU seconds of attention, bytes and rows over ranks, and rates of passes."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    (kept, seconds, size), (rows, rate, measured) = figure.subplots(2, 3)
    in_gb = {name: [value / GB for value in values] for name, values in found["kept"].items()}
    for axes in (kept, seconds):
        axes.set_yscale("log")
    _lines(kept, LENGTHS, in_gb, "activations of a row, GB (Llama-2-7B, counted)", "tokens of a row")
    _lines(seconds, TIMED, found["attention_s"], "CPU s of a row (tiny, measured)", "tokens of a row")
    for axes, key, title in (
        (size, "bytes", "GB of a rank, one row a pass (Llama-2-70B, counted)"),
        (rows, "rows", "most rows of 4,096 tokens in 80 GB (counted)"),
        (rate, "tokens_per_s", "tokens/s of a rank at that pass (computed)"),
    ):
        unit = GB if key == "bytes" else 1
        curves = {name: [each[key] / unit for each in facts] for name, facts in found["zero3"].items()}
        _lines(axes, RANKS, curves, title, "ranks")
    _lines(measured, PASSES, found["measured"], "tokens/CPU s (tiny, 2 ranks, measured)", "rows of a pass")
    size.axhline(DEVICE / GB, color="grey", linestyle="--", linewidth=1)
    return figure


def _lines(axes: Axes, at: Sequence[int], curves: Mapping[str, Sequence[float]], title: str, x: str) -> None:
    for name, values in curves.items():
        axes.plot(at, values, "o-", label=name, markersize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [f"{each:,}" for each in at])
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def page(found: Found) -> str:
    """Markdown page about the picture."""
    kept, seconds, zero3 = found["kept"], found["attention_s"], found["zero3"]
    lines = [
        "# Attention, ZeRO-3 and offload",
        "`python studies/llm_memory.py` counts the bytes of a rank as [`forebay llm memory`](../llm-memory.md) does.",
        "It measures CPU seconds with the tiny model. Nothing was measured on a GPU.",
        "",
        "![bytes, rows and rates](llm-memory.png)",
        "",
        "## Attention",
        "Activations of one row of Llama-2-7B in bf16, GB, and CPU seconds of a forward and a backward pass of the",
        "tiny model over a row that is one document.",
        "*Fused* attention (sdpa, flash, flex) keeps no scores.",
        "flash runs on GPUs only, and flex has no backward pass on a CPU.",
        "",
        _row(["tokens of a row", *kept, *(f"{attn}, CPU s" for attn in seconds)]),
        _row(["---"] * (1 + len(kept) + len(seconds))),
    ]
    for number, length in enumerate(LENGTHS):
        timed = [f"{each[TIMED.index(length)]:.3f}" if length in TIMED else "" for each in seconds.values()]
        lines.append(_row([f"{length:,}", *(f"{each[number] / GB:.1f}" for each in kept.values()), *timed]))
    lines += [
        "",
        "## ZeRO-3 with and without offload of the optimizer",
        f"Llama-2-70B in DeepSpeed's bf16 mode, rows of {TOKENS:,} tokens, gradient checkpointing, 80 GB a device.",
        "*Tokens/s* are computed, not measured: half of an A100's peak, 25 GB/s to other nodes, 25 GB/s to main",
        "memory, and nothing overlaps.",
        "",
        "| | ranks | GB of a rank, one row | GB in main memory | most rows of a pass | tokens/s of a rank |",
        "|---|---|---|---|---|---|",
    ]
    for name, facts in zero3.items():
        for ranks, each in zip(RANKS, facts, strict=True):
            cells = [f"{each['bytes'] / GB:.1f}", f"{each['host'] / GB:.1f}", f"{each['rows']:g}"]
            lines.append(_row([name, str(ranks), *cells, f"{each['tokens_per_s']:.0f}"]))
    lines += [
        "",
        "Measured: the tiny model on two ranks, rows of 128 tokens, 16 rows a step, tokens per CPU second of a rank.",
        "",
        _row(["rows of a pass", *map(str, PASSES)]),
        _row(["---"] * (1 + len(PASSES))),
        *(_row([name, *(f"{rate:,.0f}" for rate in rates)]) for name, rates in found["measured"].items()),
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_report(found: Found, out: Path) -> list[Path]:
    """Write llm-memory.json, .md and .png into `out`. Keeps what follows "## Reading"."""
    return write_study(out, "llm-memory", found, page(found), picture(found))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "experiments")
    parser.add_argument("--report", action="store_true", help="only the page and the picture, from the numbers")
    chosen = parser.parse_args(arguments)
    if chosen.report:
        found = json.loads((chosen.out / "llm-memory.json").read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = study(Path(folder))
    for path in write_report(found, chosen.out):
        print(path)


if __name__ == "__main__":
    main()
