"""Numbers and configs of a sweep as text.

The same in a terminal, a notebook and the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from forebay.runtime.formatting import metric_text, time_text
from forebay.sweep.record.record import Record, TrialRecord


def sharing_text(blocks: Iterable[str]) -> str:
    """Say which trials share blocks.

    `blocks` has the result of `trial_spec.blocks_of` for each trial. Empty for none.

    >>> sharing_text(["clicks-3fa1"] * 8)
    'all 8 trials share the blocks clicks-3fa1'
    >>> sharing_text(["clicks-3fa1", "clicks-3fa1", "clicks-77b2", ""])
    '2 trials share the blocks clicks-3fa1; 1 shares nothing, with a transform or a source of its own; 1 has no cache'
    """
    found = Counter(blocks)
    bare, lone = found.pop("", 0), sum(count == 1 for count in found.values())
    is_all = len(found) == 1 and not bare
    shared = [
        f"{'all ' if is_all else ''}{count} trials share the blocks {name}"
        for name, count in found.most_common()
        if count > 1
    ]
    alone = [f"{_have(lone, 'shares', 'share')} nothing, with a transform or a source of its own"] if lone else []
    without = [f"{_have(bare, 'has', 'have')} no cache"] if bare else []
    return "; ".join([*shared, *alone, *without])


def _have(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


MAX_WORD = 32


def summary_line(record: Record) -> str:
    """Summarize a sweep in one line.

    `best auc 0.7312 (a1b2_00003), 3 running, 2 pending, 4 of 4 slots in use, 2:10 of 10:00 left`.
    """
    facts = [best_text(record), states_text(record.trials.values())]
    if record.trials and all(trial.has_ended for trial in record.trials.values()):
        facts.append(f"{time_text(record.elapsed_s)} in all")
        return ", ".join(facts + ([blocks] if (blocks := blocks_text(record)) else []))
    if record.slots is not None:
        slots = f"{record.slots_in_use} of {record.slots} slots in use"
        # A trial runs some seconds before its workers have their place, and longer before they train.
        is_new = record.best is None and any(trial.state == "running" for trial in record.trials.values())
        facts.append(f"{slots}, workers are starting or in their first epoch" if is_new else slots)
    if record.deadline_left_s is not None:
        facts.append(f"{time_text(record.deadline_left_s)} until the deadline")
    else:
        facts.append(f"{time_text(record.elapsed_s)} so far")
    return ", ".join(facts)


def best_text(record: Record) -> str:
    """Best value and its trial."""
    best = record.best
    return f"best {record.metric} {value_text(record.best_value)} ({best.id})" if best else f"no {record.metric} yet"


def blocks_text(record: Record) -> str:
    """Say which trials share cached blocks.

    Empty before the first epoch has ended.
    """
    return sharing_text(trial.blocks for trial in record.trials.values() if trial.blocks is not None)


def states_text(trials: Iterable[TrialRecord]) -> str:
    """Count trials per state: `3 running, 2 pending, 1 failed`."""
    found = [trial.state for trial in trials]
    order = ("running", "paused", "pending", "finished", "stopped", "failed")
    return ", ".join(f"{found.count(state)} {state}" for state in order if state in found) or "no trial yet"


def value_text(value: float | None) -> str:
    """Metric value, or a dash."""
    return "-" if value is None else metric_text(value)


def config_text(config: Mapping[str, Any]) -> str:
    """`lr=0.00312, dim=16, opt=adam`."""
    return ", ".join(f"{name}={word(value)}" for name, value in config.items())


def word(value: Any) -> str:
    """Format a config value in one line.

    Floats have three significant digits, long texts are cut.
    """
    text = f"{value:.3g}" if isinstance(value, float) else " ".join(str(value).splitlines()) or "''"
    return text if len(text) <= MAX_WORD else f"{text[: MAX_WORD - 1]}…"
