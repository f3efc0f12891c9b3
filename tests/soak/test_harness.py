"""The harness finds the failures that it exists to find."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.soak import guards, slots, watch
from tests.soak.case import FAULTS, TERMS, CannotStage, Case, CaseOutcome, CaseTerms, Fault
from tests.soak.dataset import SoakSetting, draw
from tests.soak.epoch import Seen, check, clear_error, epoch
from tests.soak.runner import draw_cases, in_batches
from tests.soak.slots import CaseResult, run_forked
from tests.soak.table import BEGIN, END, SoakRun, driver_of, kind_of, moment_of, struck_by, write_table
from tests.soak.watch import SoakWatch, read_results

from forebay.errors import ReadFailed

Register = Callable[[Fault], Case]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """`register(function) -> Case` of a fault that exists only in this test."""
    monkeypatch.setattr(guards, "GRACE_S", 0.1)
    monkeypatch.setattr(slots, "_SPARE_S", 60.0)

    def register(function: Fault) -> Case:
        monkeypatch.setitem(FAULTS, function.__name__, function)
        deadline_s = 2.0 if function is hangs else 60.0
        monkeypatch.setitem(TERMS, function.__name__, CaseTerms(expected="", deadline_s=deadline_s))
        return Case(function.__name__, 0)

    return register


def fine(rng: random.Random, folder: Path) -> CaseOutcome:
    return CaseOutcome("equal", str(folder.is_dir()))


def raises(rng: random.Random, folder: Path) -> CaseOutcome:
    raise RuntimeError("not what it should be")


def too_busy(rng: random.Random, folder: Path) -> CaseOutcome:
    raise CannotStage("Ray does not start")


def dies(rng: random.Random, folder: Path) -> CaseOutcome:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(rng: random.Random, folder: Path) -> CaseOutcome:
    time.sleep(60)
    return CaseOutcome("equal")


def leaks_a_thread(rng: random.Random, folder: Path) -> CaseOutcome:
    threading.Thread(target=time.sleep, args=(30,), name="forgotten", daemon=True).start()
    return CaseOutcome("equal")


def leaks_a_child(rng: random.Random, folder: Path) -> CaseOutcome:
    if not os.fork():
        time.sleep(30)
        os._exit(0)
    return CaseOutcome("equal")


def leaks_a_file(rng: random.Random, folder: Path) -> CaseOutcome:
    os.open(folder / "forgotten", os.O_CREAT)
    return CaseOutcome("equal")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, "not what it should be"),
        (dies, "exit code -9"),
        (hangs, "in hangs"),
        (leaks_a_thread, "thread forgotten"),
        (leaks_a_child, "process "),
        (leaks_a_file, "/forgotten"),
    ],
)
def test_bad_cases_fail_and_the_next_one_runs(register: Register, function: Fault, words: str) -> None:
    bad, good = run_forked([register(function), register(fine)])
    assert bad.kind == "failed" and words in bad.detail
    assert (good.kind, good.detail) == ("equal", "True")


def test_what_the_machine_cannot_stage_is_no_failure(register: Register) -> None:
    (result,) = run_forked([register(too_busy)])
    assert (result.kind, result.detail) == ("skipped", "Ray does not start")


@pytest.fixture
def setting(tmp_path: Path) -> SoakSetting:
    return draw(random.Random(1), tmp_path, ranks=2)


def _spoiled(name: str, seen: Seen) -> Seen:
    (position, size, parts), *rest = seen.steps
    first = parts[0]
    order = np.arange(len(first["id"]))
    if name == "reordered":
        first = {column: array[order[::-1]] for column, array in first.items()}
    elif name == "lost":
        first = {column: array[:-1] for column, array in first.items()}
    elif name == "repeated":
        first = {column: array[np.r_[order[:-1], 0]] for column, array in first.items()}
    elif name == "content":
        first = first | {"dense": first["dense"] + 1}
    steps = [(position, size, [first, *parts[1:]]), *rest]
    return Seen(steps=steps[:-1] if name == "cut" else steps)


# How cases run is seen in test_matrix.py.
@pytest.mark.parametrize(
    "name", ["reordered", pytest.param("lost", marks=pytest.mark.smoke), "repeated", "content", "cut"]
)
def test_wrong_rows_are_found(setting: SoakSetting, name: str) -> None:
    seen = epoch(setting)
    check(setting, seen)
    assert len(seen.steps[0][2][0]["id"]) > 1
    with pytest.raises(AssertionError):
        check(setting, _spoiled(name, seen))


def test_an_error_must_name_the_object_and_the_remedy() -> None:
    assert clear_error(ReadFailed("a.parquet cannot be read. Ask for access."), "a.parquet").kind == "error"
    for text in ("It cannot be read. Ask for access.", "a.parquet cannot be read"):
        with pytest.raises(AssertionError):
            clear_error(ReadFailed(text), "a.parquet")


def test_a_cache_above_its_quota_is_found(tmp_path: Path) -> None:
    setting = draw(random.Random(3), tmp_path, cached=True, warmth="warm", quota="enough")
    guards.check_cache(setting)
    (setting.disk.path / "blocks" / "stray").write_bytes(bytes(setting.disk.quota_bytes))
    with pytest.raises(AssertionError, match="its quota is"):
        guards.check_cache(setting)


def test_cases_are_drawn_by_seed_and_share(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    register(fine)
    monkeypatch.setitem(FAULTS, "rare", raises)
    monkeypatch.setitem(TERMS, "rare", CaseTerms(expected="", share=0.05, group="together"))
    drawn = draw_cases(200, 7, ["fine", "rare"])
    assert drawn == draw_cases(200, 7, ["fine", "rare"]) != draw_cases(200, 8, ["fine", "rare"])
    rare = [case for case in drawn if case.fault == "rare"]
    assert 1 <= len(rare) < 40
    batches = in_batches(drawn)
    assert sorted(case.seed for batch in batches for case in batch) == sorted(case.seed for case in drawn)
    assert all(len(batch) == 1 or batch[0].fault == "rare" for batch in batches)


def test_faults_that_a_case_counts_are_summed_up(register: Register) -> None:
    case = register(fine)
    counted = CaseResult(case.fault, 1, "equal", "", 0.1, {"kill": 3, "stop": 2})
    run = SoakRun(seed=1, seconds=1.0, results=[counted, replace(counted, faults={}), replace(counted, kind="skipped")])
    assert run.faults() == {"kill": 3, "stop": 2, "fine": 1}
    assert "3 cases with 6 faults" in run.summary()


def test_the_table_takes_its_place(register: Register, tmp_path: Path) -> None:
    case = register(fine)
    path = tmp_path / "reliability.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    result = CaseResult(case.fault, 3, "equal", "", 0.5)
    write_table(path, SoakRun(seed=1, seconds=60.0, results=[result, replace(result, kind="failed")]))
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| fine |  | 2 | 1 | 0 | 0 | 1 |" in text and "2 cases with 2 faults, seed 1" in text


STRUCK = {
    "ray: kill worker / a commit / several at once": 2,
    "ray: freeze store / training": 1,
    "horovod: kill worker": 4,
}


def test_faults_are_summed_up_by_driver_kind_and_moment(register: Register) -> None:
    case = register(fine)
    result = CaseResult(case.fault, 1, "equal", "", 0.1, STRUCK)
    failed = replace(result, kind="failed", faults={})
    assert struck_by(driver_of, [result]) == {"ray": 3, "horovod": 4}
    assert struck_by(kind_of, [result]) == {"kill worker": 6, "freeze store": 1}
    assert struck_by(moment_of, [result]) == {"a commit, several at once": 2, "training": 1, "any moment": 4}
    text = SoakRun(seed=1, seconds=1.0, results=[result, failed]).text()
    assert "horovod: 4 faults\n  kill worker 4" in text and f"FAILED  {failed.case.replay}" in text


def test_progress_is_told_where_no_terminal_is(
    register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = register(fine)
    path, output = tmp_path / "kept" / "1.jsonl", io.StringIO()
    shown = SoakWatch(Console(file=output), [case, replace(case, seed=1), replace(case, seed=2)], path)
    with shown.open():
        shown.take(CaseResult(case.fault, 0, "equal", "", 0.1, STRUCK))
        shown.tell([])
        assert output.getvalue() == "", "a line before its time"
        monkeypatch.setattr(watch, "EVERY_S", 0.0)
        shown.tell([(case, time.monotonic())])
        assert "1 of 3 cases, 7 faults (horovod 4, ray 3), 0 failed, 0 skipped; fine 0 for 0 s" in output.getvalue()
        shown.take(CaseResult(case.fault, 1, "failed", "it broke", 0.1))
    assert f"FAILED  {replace(case, seed=1).replay}\nit broke" in output.getvalue()
    with path.open("a") as file:
        file.write('{"fault": "cut off')
    assert read_results([path]) == shown.results


@pytest.mark.variation
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_soak_that_is_cut_tells_and_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "results"
    words = ["--fault", "clock-jumps", "--cases", "10000", "--results", str(path)]
    soak = subprocess.Popen([sys.executable, "-m", "tests.soak", *words], stdout=subprocess.PIPE, text=True)
    while not path.exists():
        assert soak.poll() is None
        time.sleep(0.05)
    soak.send_signal(number)
    text, _ = soak.communicate(timeout=120)
    assert soak.returncode == 128 + number
    assert f"{len(read_results([path]))} cases with" in text and "single faults" in text
