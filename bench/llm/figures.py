"""Figures of the turns of the bench of language models. Pure functions of llm.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Turn = Mapping[str, Any]


def rate(turn: Turn) -> float:
    """Tokens of documents per CPU second, without the first step."""
    steps = turn["steps"]
    return sum(step["tokens"] for step in steps[1:]) / (steps[-1]["cpu_s"] - steps[0]["cpu_s"])


def fill(turn: Turn) -> float:
    """Share of the tokens of all passes that belong to documents."""
    return sum(step["tokens"] for step in turn["steps"]) / sum(step["slots"] for step in turn["steps"])


def losses(turn: Turn) -> dict[int, float]:
    """Held-out loss by the number of steps."""
    return {int(step): float(loss) for step, loss in turn["losses"].items()}


def seconds_to(turn: Turn, loss: float, clock: str) -> float | None:
    """Seconds of training until the held-out loss is `loss`, on a line between two snapshots. None: it stays above.

    The first step has no beginning on the clock: it counts as the mean of the others.
    """
    found, steps = losses(turn), turn["steps"]
    per_step = (steps[-1][clock] - steps[0][clock]) / (len(steps) - 1)
    for (before, high), (after, low) in pairwise(sorted(found.items())):
        if low <= loss:
            share = (high - loss) / (high - low) if high > low else 1.0
            return (before + max(share, 0.0) * (after - before)) * per_step
    return None


def common_loss(turns: Sequence[Turn]) -> float:
    """Lowest loss that every turn reaches."""
    return max(min(losses(turn).values()) for turn in turns)


def ratios(turns: Sequence[Turn], over: str, under: str) -> list[float]:
    """Rate of one system over another's, for each round and kind of chats that has both."""
    rates = {(turn["name"], turn["kind"], turn["round"]): rate(turn) for turn in turns}
    places = sorted({(turn["kind"], turn["round"]) for turn in turns})
    pairs = [((over, *place), (under, *place)) for place in places]
    return [rates[first] / rates[second] for first, second in pairs if first in rates and second in rates]


def preparation_rate(preparation: Mapping[str, Any], processes: int) -> float:
    """Tokens per second on cores that have nothing else to do, without the start of processes.

    The CPU seconds of the process that leads are not divided, and the others' are divided evenly.
    """
    small, large = (preparation[size][str(processes)] for size in ("small", "large"))
    tokens, own, others = (large[name] - small[name] for name in ("tokens", "own_cpu_s", "children_cpu_s"))
    return float(tokens / (own + others / processes))


def median(values: Sequence[float]) -> float:
    """Median."""
    return statistics.median(values)
