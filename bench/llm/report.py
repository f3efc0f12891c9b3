"""Document of the bench of language models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.llm.figures import common_loss, fill, losses, median, preparation_rate, rate, ratios, seconds_to
from bench.llm.resume import WORKERS
from bench.llm.turn import FOREBAY, PADDED, ROWS, TORCHTUNE
from bench.turns import markdown_table, spread

_INTRODUCTION = """# Fine-tuning side by side

`make bench-llm` makes this page.
Every system trains the same Llama (4 layers, width 256, {entries} entries) from the same weights on the same \
{chats:,} made-up chats.
Only the answers and their ends are learned.
Each turn is one process with one thread, in float32 on the CPU, with AdamW at a constant rate.
Each system's file in `bench/llm/systems/` names the documentation of its configuration.

A step has {step_rows} rows of {seq_len} tokens, in one pass.
Where documents are padded, it has as many documents as hold about as many tokens, in passes of 16.
Chats of *usual* lengths have {usual_mean:.0f} tokens in the mean.
Of those with a *heavy tail*, one in 12 has about 450 tokens and the others about 24.
Padded to the longest of 16, the fill is {usual_fill:.2f} and {heavy_fill:.2f}. Packed, it is {usual_packed:.3f} and \
{heavy_packed:.3f}.

*Tokens/CPU s* are tokens of documents per CPU second of the process, from the end of step 1 to the end of step \
{steps}: padding counts for nothing.
*Peak* is the peak resident memory of the process, libraries included.
*Held-out loss* is computed after the turn from the weights that each system left, in the same way for all.
*CPU s to loss* are CPU seconds of training until the held-out loss is the lowest that all systems reach.
Figures are medians over {rounds}, with the range in brackets.

Machine: {cpu}, {cores} cores, {memory_gb:.0f} GB, {system}.
Only CPU seconds are compared, and no wall time is.
The run took {minutes:.0f} minutes{pieces}; load average before {loads}.
"""
_NOTES = """With sdpa on a CPU, a packed row pays for attention over all of its tokens.
Forebay computes each document by itself there, and logits for targets only.
Documents that are padded and sorted by length also pay for their own attention only.
Their passes are not of random documents: all of a pass have about the same length.
TRL makes one row of a whole pass, which multiplies the cost of attention without flash attention."""
_RESUME = """A run has a checkpoint after step 3 and is killed after step 5.
New processes go on from the checkpoint, with the same global batch.
Users of the peers keep it with two workers by halving the accumulation by hand, and cannot with three.
The figure is the share of steps 4 to 6 that have exactly the documents of the run that was not stopped.
LLaMA-Factory and axolotl train by the Trainer of transformers, and were not killed here."""
_PREPARATION = """Rendering, tokens, packing and Parquet, of 8 files of 250 chats each, and of 2,500.
The difference of both is the rate without the start of processes and the import of libraries.
*On idle cores* divides the CPU seconds of the processes that prepare by their number. The process that \
leads is not divided."""


def report(found: Mapping[str, Any]) -> str:
    """Text of llm.md from the contents of llm.json, also of a part of them."""
    turns = [turn for turn in found["turns"] if "error" not in turn]
    parts = [_introduction(found), found.get("note", ""), "## Targets", _targets(turns, found)]
    for kind, title in (("usual", "Chats of usual lengths"), ("heavy", "Chats with a heavy tail")):
        own = [turn for turn in turns if turn["kind"] == kind]
        parts += [f"## {title}", _table(own)] if own else []
    parts.append(_NOTES)
    if found["second"]:
        parts += ["## First step of a second run", _second(found, turns)]
    if found["resume"]:
        parts += ["## Documents after a kill", _RESUME, _resume(found["resume"])]
    if found["preparation"]:
        parts += ["## Preparation", _PREPARATION, _preparation(found["preparation"])]
    failures = [*_failures(found)]
    if failures:
        parts += ["## Failed", "\n".join(failures)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _introduction(found: Mapping[str, Any]) -> str:
    machine, data = found["machine"], found["data"]
    number = len({turn["round"] for turn in found["turns"]})
    facts = {"memory_gb": machine["memory_bytes"] / 2**30, "minutes": found.get("took_s", 0) / 60}
    facts |= {"rounds": "1 round" if number == 1 else f"{number} rounds"}
    loads = [piece["load_before"] for piece in found.get("pieces") or [machine]]
    several = len(loads) > 1
    facts |= {"pieces": f", in {len(loads)} pieces" if several else ""}
    facts |= {"loads": ("each: " if several else "it: ") + ", ".join(f"{load:.1f}" for load in loads)}
    facts |= {f"{kind}_fill": data[kind]["padded_fill"] for kind in data}
    facts |= {f"{kind}_packed": data[kind]["fill"] for kind in data}
    return _INTRODUCTION.format(**machine, **found["options"], **facts, usual_mean=data["usual"]["mean_tokens"])


def _targets(turns: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> str:
    heavy = [turn for turn in turns if turn["kind"] == "heavy"]
    lines = [("figure", "target", "measured", "")]
    for title, own, peer, least in (
        (f"tokens/CPU s, over {ROWS.name}", turns, ROWS.name, 1.0),
        (f"tokens/CPU s, over {TORCHTUNE.name}", turns, TORCHTUNE.name, 1.0),
        (f"tokens/CPU s, over {PADDED.name}, heavy tail", heavy, PADDED.name, 1.5),
    ):
        lines.append(_target(title, least, ratios(own, FOREBAY.name, peer)))
    prepared = found["preparation"]
    is_measured = bool(prepared) and "error" not in prepared
    scaled = [preparation_rate(prepared, 2) / preparation_rate(prepared, 1)] if is_measured else []
    lines.append(_target("preparation by 2 processes, over one", 1.6, scaled))
    return markdown_table(lines)


def _target(title: str, least: float, values: Sequence[float]) -> tuple[str, ...]:
    if not values:
        return title, f">= {least:g}", "not measured", ""
    return title, f">= {least:g}", spread(values, "{:.2f}"), "met" if median(values) >= least else "**missed**"


def _table(turns: Sequence[Mapping[str, Any]]) -> str:
    goal = common_loss(turns)
    last = max(losses(turns[0]))
    head = ("system", "tokens/CPU s", "fill", "peak, MB", f"held-out loss after {last} steps", f"CPU s to {goal:.2f}")
    lines = [head]
    for name in dict.fromkeys(turn["name"] for turn in turns):
        own = [turn for turn in turns if turn["name"] == name]
        seconds = [found for turn in own if (found := seconds_to(turn, goal, "cpu_s")) is not None]
        lines.append(
            (
                name,
                spread([rate(turn) for turn in own], "{:,.0f}"),
                spread([fill(turn) for turn in own], "{:.2f}"),
                spread([turn["peak_bytes"] / 1e6 for turn in own], "{:,.0f}"),
                spread([losses(turn)[last] for turn in own], "{:.3f}"),
                spread(seconds, "{:.1f}"),
            )
        )
    return markdown_table(lines)


def _second(found: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> str:
    lines = [("system", "first run, CPU s", "second run, CPU s")]
    for each in found["second"]:
        first = [turn["steps"][0]["cpu_s"] for turn in turns if (turn["name"], turn["kind"]) == (each["name"], "usual")]
        again = "error" if "error" in each else f"{each['steps'][0]['cpu_s']:.1f}"
        lines.append((each["name"], spread(first, "{:.1f}"), again))
    return markdown_table(lines)


def _resume(found: Mapping[str, Any]) -> str:
    lines = [("system", *(f"with {number} worker{'s' * (number > 1)}" for number in WORKERS))]
    for name, each in found.items():
        cells = ["error"] * len(WORKERS) if "error" in each else [_share(each[f"with {n}"]) for n in WORKERS]
        lines.append((name, *cells))
    return markdown_table(lines)


def _share(each: Mapping[str, Any]) -> str:
    if each.get("is_refused"):
        return "the global batch is not divisible"
    return "error" if each["equal"] is None else f"{each['equal']:.0%} equal"


def _preparation(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"Failed: {found['error']}"
    lines = [("processes", "tokens", "CPU s, leading process", "CPU s, others", "tokens/s on idle cores")]
    for processes in (1, 2):
        for size in ("small", "large"):
            each = found[size][str(processes)]
            cells = (f"{each['tokens']:,}", f"{each['own_cpu_s']:.2f}", f"{each['children_cpu_s']:.2f}")
            lines.append((str(processes), *cells, f"{preparation_rate(found, processes):,.0f}" * (size == "large")))
    return markdown_table(lines)


def _failures(found: Mapping[str, Any]) -> Iterable[str]:
    for name, error in found["failed"].items():
        yield f"- environment of {name}: {error}"
    for each in [*found["turns"], *found["second"]]:
        if "error" in each:
            yield f"- {each['name']}: {each['error']}"
    for name, each in found["resume"].items():
        errors = [each["error"]] if "error" in each else [each[f"with {number}"]["error"] for number in WORKERS]
        yield from (f"- {name}, after a kill: {error}" for error in errors if error)
