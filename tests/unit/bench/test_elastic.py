"""The elastic bench: the figures that it reads from a run's log, and their presentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Bench = Callable[[str], ModuleType]


def step(time: float, number: int, size: int, pid: int = 1) -> dict[str, Any]:
    return {"what": "step", "time": time, "step": number, "rank": 0, "size": size, "pid": pid}


def asked(time: float, act: str) -> dict[str, Any]:
    return {"what": "asked", "time": time, "act": act, "pid": 9}


def note(time: float, what: str, act: str, reason: str = "> 60 s") -> dict[str, Any]:
    return {"what": what, "time": time, "act": act, "reason": reason, "pid": 9}


LINES = [
    step(1.0, 1, 1),
    step(1.1, 2, 1),
    asked(1.15, "grow"),
    step(1.2, 3, 1),
    {"what": "born", "time": 2.0, "pid": 2, "rank": 0, "size": 2, "since": 0.5},
    step(2.7, 4, 2, pid=2),
    asked(3.0, "kill a worker"),
    step(3.5, 4, 1, pid=2),
    step(4.0, 5, 2, pid=2),
    asked(5.0, "enough"),
]


def test_gaps_are_between_rank_0_s_steps_around_a_change(bench: Bench) -> None:
    grow, kill = bench("elastic.log").answers(LINES)
    assert (grow.what, grow.redone, len(grow.changes)) == ("grow", 0, 1)
    assert grow.changes[0].gap_s == pytest.approx(1.5)
    assert grow.asked_s == pytest.approx(0.05)
    assert [(round(seconds, 3), words.split(";")[0]) for seconds, words in grow.phases] == [
        (-0.05, "request: grow"),
        (0.8, "rank 0 of 2 joins"),
        (1.5, "first step"),
    ]
    assert [(change.old, change.new, round(change.gap_s, 3)) for change in kill.changes] == [(2, 1, 0.8), (1, 2, 0.5)]
    assert kill.redone == 1


def test_log_is_shared_and_in_order_of_time(bench: Bench, tmp_path: Path) -> None:
    log = bench("elastic.log").EventLog(str(tmp_path / "log"))
    log.note("step", step=1)
    log.note_birth(rank=1, size=2)
    first, second = log.read()
    assert (first["what"], second["what"]) == ("step", "born")
    assert 0 < second["time"] - second["since"] < 36_000


def test_what_was_asked_in_vain_has_its_reason(bench: Bench) -> None:
    unanswered = bench("elastic.log").unanswered
    over = {"what": "over", "time": 99.0, "pid": 9}
    assert unanswered([*LINES, over]) == {}
    lines = [*LINES[:-1], note(70.0, "late", "kill a worker"), note(70.1, "skipped", "shrink", "skipped: ..."), over]
    assert unanswered(lines) == {"kill a worker, back": "> 60 s", "shrink": "skipped: ..."}
    assert unanswered([asked(1.0, "grow")]) == {"grow": "the run failed"}


def test_director_gives_up_what_does_not_come_and_skips_the_rest(bench: Bench, tmp_path: Path) -> None:
    director = bench("elastic.director")
    log = bench("elastic.log").EventLog(str(tmp_path / "log"))
    log.note("step", step=1, rank=0, size=1)
    acts = [director.Act(what, size, lambda: None, after=1) for what, size in (("grow", 1), ("kill", 2), ("enough", 2))]
    ended: list[bool] = []
    director.Director(log, acts, end=lambda: ended.append(True), limit_s=0.2).run()
    told = [(line["what"], line.get("act")) for line in log.read()]
    assert told == [("step", None), ("asked", "grow"), ("late", "grow"), ("skipped", "kill"), ("over", None)]
    late = next(line["reason"] for line in log.read() if line["what"] == "late")
    assert re.fullmatch(r"> \d+ s", late)
    assert bench("elastic.log").unanswered(log.read()) == {"grow": late, "kill": f"skipped: grow {late}"}
    assert ended == [True]


def test_report_marks_what_misses_and_shows_where_time_goes(bench: Bench, tmp_path: Path) -> None:
    elastic, report = bench("elastic.__main__"), bench("elastic.report")
    measured = {name: elastic.Measured() for name in ("Ray Train", "Forebay, Horovod")}
    for each in measured.values():
        each.take("changes", LINES)
    measured["Ray Train"].errors.append("node: did not end within 300 s")
    measured["Ray Train"].take("node", [step(1.0, 1, 2), asked(1.05, "kill a node"), note(62.0, "late", "kill a node")])
    measured["Forebay, Horovod"].missing["kill a node"] = ["not within 60 s"]
    machine = {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5}
    systems = {name: vars(each) for name, each in measured.items()}
    elastic.Measured(missing=systems["Ray Train"]["missing"]).take("commit", [])
    found = {"machine": machine, "options": {"repeats": 2, "step_s": 0.1}, "took_s": 60, "systems": systems}
    text = report.report(json.loads(json.dumps(found)))
    assert "| grow 1 -> 2, s | 1.5, n=1 | 1.5, n=1 (<= 0.5, **missed**) |" in text
    assert "| its replacement joins, s | 0.5, n=1 | 0.5, n=1 |" in text
    assert "| steps redone, SIGKILL, steps | 1, n=1 | 1, n=1 (<= 1) |" in text
    assert "| SIGKILL a node, s | > 60 s | not within 60 s (<= 3, **missed**) |" in text
    assert "| shrink 2 -> 1 (Ray Train: a drained and removed node), s | - | - |" in text
    assert "| commit, 400 MB, ms | did not start, see below | - |" in text
    assert "- Ray Train, node: kill a node: > 60 s" in text
    assert "### Forebay, Horovod, grow 1 -> 2: phases" in text
    assert "| +0.80 | rank 0 of 2 joins; its process is 1.5 s old |" in text
    assert "- Ray Train, node: did not end within 300 s" in text
    report.plot(found, tmp_path / "elastic.png")
    assert (tmp_path / "elastic.png").stat().st_size > 5000
