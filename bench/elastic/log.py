"""Log of one run: timed notes of all its processes, and the changes of membership that follow from them.

Lines are JSON. Rank 0 writes `step` after every optimizer step, and `commit` with its seconds. Every rank writes `born`
(when its process began), `ready` (state restored, about to train) and `parted`. The driver writes `event`. The director
writes `asked`, `late` (no answer came), `skipped` and `over`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class EventLog:
    """Log file to which many processes append. Each line is one write."""

    path: str

    def note(self, what: str, **facts: Any) -> None:
        """Note that `what` happens now."""
        line = json.dumps({"what": what, "time": time.time(), "pid": os.getpid(), **facts}) + "\n"
        with Path(self.path).open("ab", buffering=0) as file:
            file.write(line.encode())

    def note_birth(self, rank: int, size: int) -> None:
        """Note when this process started. The start of a warm process is before the change of membership."""
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        born = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
        self.note("born", rank=rank, size=size, since=born)

    def read(self) -> list[Line]:
        """All lines so far, by time."""
        path = Path(self.path)
        lines = path.read_text().splitlines() if path.exists() else []
        return sorted((json.loads(line) for line in lines), key=lambda line: line["time"])


@dataclass(frozen=True)
class MembershipChange:
    """Change from `old` to `new` workers. `gap_s` is the time from rank 0's last step before it to its first step
    after.
    """

    gap_s: float
    old: int
    new: int
    last_step_at: float
    first_step_at: float


@dataclass(frozen=True)
class Answer:
    """Outcome of the request `what`.

    - `changes`: changes until the next request. Replacing a worker may bring two: at its end, and at the other's start.
    - `asked_s`: seconds that training continued before the first change.
    - `redone`: number of rank 0's steps that were repeated.
    - `phases`: notes between the request and the first step after it, in seconds after the last step before it.
    """

    what: str
    asked_s: float
    changes: tuple[MembershipChange, ...]
    redone: int
    phases: tuple[tuple[float, str], ...]


def steps(lines: Sequence[Line]) -> list[Line]:
    """Steps of rank 0."""
    return [line for line in lines if line["what"] == "step" and line["rank"] == 0]


def members(step: Line) -> tuple[int, int]:
    """Identity of a membership: size of the world, and process of rank 0."""
    return step["size"], step["pid"]


def changes(lines: Sequence[Line]) -> list[MembershipChange]:
    """All changes of membership between two steps of rank 0."""
    return [
        MembershipChange(after["time"] - before["time"], before["size"], after["size"], before["time"], after["time"])
        for before, after in pairwise(steps(lines))
        if members(before) != members(after)
    ]


def answers(lines: Sequence[Line]) -> list[Answer]:
    """Outcomes of the requests, without those that brought no change."""
    asked = [line for line in lines if line["what"] == "asked"]
    ends = [line["time"] for line in asked[1:]] + [float("inf")]
    found = []
    for line, end in zip(asked, ends, strict=True):
        own = tuple(change for change in changes(lines) if line["time"] <= change.first_step_at < end)
        if own:
            redone = _redone(lines, line["time"], end)
            waited_s = max(0.0, own[0].last_step_at - line["time"])
            found.append(Answer(line["act"], waited_s, own, redone, _phases(lines, line["time"], own[0])))
    return found


def unanswered(lines: Sequence[Line]) -> dict[str, str]:
    """Requests without an answer, and those skipped for that reason, each with the reason.

    `WHAT, back` means: training continued after `WHAT`, and only the replacement did not come.
    """
    answered, found = {answer.what for answer in answers(lines)}, dict[str, str]()
    for line in lines:
        if line["what"] == "late":
            found[f"{line['act']}, back" if line["act"] in answered else line["act"]] = line["reason"]
        elif line["what"] == "skipped":
            found[line["act"]] = line["reason"]
    asked = [line["act"] for line in lines if line["what"] == "asked"]
    said = {line["what"] for line in lines}
    if "failed" in said or "over" not in said:  # The run ended, or was ended, before its last act.
        found |= {act: "the run failed" for act in asked if act not in answered | found.keys()}
    return found


def commits(lines: Sequence[Line]) -> list[float]:
    """Seconds of rank 0's commits, without the first three of each process, which warm up."""
    by_process: dict[int, list[float]] = {}
    for line in lines:
        if line["what"] == "commit":
            by_process.setdefault(line["pid"], []).append(line["seconds"])
    return [seconds for process in by_process.values() for seconds in process[3:]]


def _redone(lines: Sequence[Line], start: float, end: float) -> int:
    before = {line["step"] for line in steps(lines) if line["time"] < start}
    window = [line["step"] for line in steps(lines) if start <= line["time"] < end]
    return len(window) - len(set(window) - before)


def _phases(lines: Sequence[Line], asked_at: float, change: MembershipChange) -> tuple[tuple[float, str], ...]:
    told = [line for line in lines if line["what"] not in ("step", "commit")]
    told = [line for line in told if asked_at <= line["time"] <= change.first_step_at]
    words = [(line["time"] - change.last_step_at, _words(line)) for line in told]
    return (*words, (change.gap_s, "first step"))


def _words(line: Line) -> str:
    match line["what"]:
        case "born":
            return (
                f"rank {line['rank']} of {line['size']} joins; its process is {line['time'] - line['since']:.1f} s old"
            )
        case "ready":
            return f"rank {line['rank']} of {line['size']} has its state"
        case "parted":
            return f"rank {line['rank']} of {line['size']} leaves at its commit"
        case "event":
            return f"driver event: {line['event']}"
        case "asked":
            return f"request: {line['act']}"
        case other:
            return str(other)
