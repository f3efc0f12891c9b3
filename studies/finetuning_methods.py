"""Loss of full, LoRA and QLoRA fine-tuning of one model on one set of conversations, and the memory of each.

python studies/finetuning_methods.py              # minutes on two cores; writes docs/experiments/finetuning.*
python studies/finetuning_methods.py --report     # only the page and the picture, from the numbers
"""

from __future__ import annotations

import argparse
import json
import runpy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from reports.page import write_study

import forebay as fb
from forebay import llm
from forebay.testing.data.chats import Message, made_up_chats

ROOT = Path(__file__).parents[1]
BEFORE, AFTER = ("Copy", "Add"), ("Reverse", "In")
"""Questions of the base model, and those that it is tuned on."""
METHODS = {"full": ("full", 1e-3), "lora": ("LoRA", 5e-3), "qlora": ("QLoRA", 5e-3)}
"""Method -> its title and its learning rate."""
COLOURS = {"full": "#1f77b4", "lora": "#d1495b", "qlora": "#edae49"}
RUN = {"seq_len": 128, "overflow": "split", "global_batch": 16, "per_device_batch": 16, "workers": 1}
RANK = 8
"""Rank of the adapters."""

Found = Mapping[str, Any]


def chats_of(kinds: Sequence[str], seed: int) -> Iterator[list[Message]]:
    """Made-up conversations all of whose questions begin with one of `kinds`, without end."""
    for messages in made_up_chats(seed):
        if all(each["content"].startswith(tuple(kinds)) for each in messages if each["role"] == "user"):
            yield messages


def write(folder: Path, name: str, kinds: Sequence[str], *, chats: int, held_out: int) -> dict[str, str]:
    """Files of conversations, as arguments of the job."""
    rows = [json.dumps({"messages": each}) for each in islice(chats_of(kinds, seed=len(name)), chats + held_out)]
    files = {"data": rows[held_out:], "held_out": rows[:held_out]}
    for part, lines in files.items():
        (folder / f"{name}-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return {part: str(folder / f"{name}-{part}.jsonl") for part in files}


def study(folder: Path, *, chats: int, epochs: int) -> Found:
    """Train a base model, export it, and tune it in each way."""
    job = runpy.run_path(str(ROOT / "jobs" / "finetune_llm.py"))["job"]
    options = {**RUN, "storage": str(folder / "runs"), "cache": str(folder / "cache"), "epochs": epochs}
    base = write(folder, "base", BEFORE, chats=chats, held_out=64)
    fb.run(job(**options, **base, lr=4e-3, name="base"), "local")
    llm.export("base", str(folder / "model"), storage=options["storage"])
    tuned = write(folder, "tuned", AFTER, chats=chats, held_out=128)
    runs = {}
    for method, (_, rate) in METHODS.items():
        adapter = {} if method == "full" else {"lora_r": RANK}
        made = job(**options, **adapter, **tuned, model=str(folder / "model"), finetuning=method, lr=rate, name=method)
        runs[method] = facts_of(fb.run(made, "local"), folder / "runs" / method)
    return {"chats": chats, "epochs": epochs, "lora_r": RANK, "runs": runs}


def facts_of(result: fb.Result, folder: Path) -> dict[str, Any]:
    """Numbers of a run: losses by step and by epoch, and the bytes of its newest checkpoint."""
    newest = max((folder / "checkpoints").iterdir())
    return {
        "steps": [[each.step, round(float(each.metrics["loss"]), 4)] for each in result.steps],
        "validation_loss": [round(each.metrics["validation_loss"], 4) for each in result.epochs],
        "exact_match": [round(each.metrics["exact_match"], 3) for each in result.epochs],
        "checkpoint_bytes": sum(each.stat().st_size for each in newest.iterdir()),
    }


def picture(found: Found) -> Figure:
    """Training loss by step, and held-out loss and exact matches by epoch."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    losses, held_out, exact = figure.subplots(1, 3)
    for method, facts in found["runs"].items():
        title, color = METHODS[method][0], COLOURS[method]
        steps, values = zip(*facts["steps"], strict=True)
        losses.plot(steps, values, color=color, alpha=0.25, linewidth=1)
        losses.plot(steps, smooth(values), color=color, label=title)
        epochs = range(1, len(facts["validation_loss"]) + 1)
        held_out.plot(epochs, facts["validation_loss"], color=color, label=title, marker="o", markersize=3)
        exact.plot(epochs, facts["exact_match"], color=color, label=title, marker="o", markersize=3)
    for axes, name, place in ((losses, "training loss", "step"), (held_out, "held-out loss", "epoch")):
        axes.set(title=name, xlabel=place, yscale="log")
    exact.set(title="answers that match exactly", xlabel="epoch", ylim=(0, 1.02))
    for axes in (losses, held_out, exact):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Running average, which begins at the first value."""
    average, found = values[0], []
    for value in values:
        average = weight * average + (1 - weight) * value
        found.append(average)
    return found


def page(found: Found) -> str:
    """Markdown page about the picture."""
    rows = [
        f"| {METHODS[method][0]} | {METHODS[method][1]:g} | {facts['validation_loss'][-1]:.3f} | "
        f"{facts['exact_match'][-1]:.3f} | {facts['checkpoint_bytes'] / 1e6:.2f} MB |"
        for method, facts in found["runs"].items()
    ]
    sentences = [
        "# Full, LoRA and QLoRA fine-tuning of one model",
        (
            "`python studies/finetuning_methods.py` trains the tiny Llama (2 layers, width 64) on questions of two "
            "kinds (copy, add) and exports it."
        ),
        (
            f"Then it tunes this base on {found['chats']:,} conversations of two other kinds (reverse, look up), "
            f"{found['epochs']} epochs."
        ),
        "All three runs have the same rows in the same order.",
        f"Adapters have rank {found['lora_r']} on every linear layer but the last. QLoRA's base is NF4.",
        "",
        "| | learning rate | held-out loss | exact match | checkpoint |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*sentences, *rows]) + "\n\n![loss by method](finetuning.png)\n"


def write_report(found: Found, out: Path) -> list[Path]:
    """Write finetuning.json, .md and .png into `out`. Keeps what follows "## Reading"."""
    return write_study(out, "finetuning", found, page(found), picture(found))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "experiments")
    parser.add_argument("--report", action="store_true", help="only the page and the picture, from the numbers")
    chosen = parser.parse_args(arguments)
    if chosen.report:
        found = json.loads((chosen.out / "finetuning.json").read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = study(Path(folder), chats=chosen.chats, epochs=chosen.epochs)
    for path in write_report(found, chosen.out):
        print(path)


if __name__ == "__main__":
    main()
