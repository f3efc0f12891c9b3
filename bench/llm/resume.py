"""Documents of the steps after a kill, beside a run that was not stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.llm.setting import LlmSetting
from bench.llm.turn import LlmEntry, take_turn

CHECKPOINT_AT, KILLED_AT, STEPS = 3, 5, 6
WORKERS = (1, 2, 3)
"""Three divide neither the rows nor the documents of a step, which those that accumulate whole passes need."""


def measure_resume(entry: LlmEntry, python: Path, setting: LlmSetting, limit_s: float) -> dict[str, Any]:
    """Share of the steps after the checkpoint that have their documents again, with each number of workers."""
    # Passes are half as large as a process can take with two workers: the global batch stays what it is.
    given = replace(setting, record=True, snapshots="", pass_rows=setting.step_rows // 2)
    given = replace(given, pass_documents=setting.step_documents // 2, checkpoint_at=CHECKPOINT_AT)
    whole = _steps(entry, python, replace(given, work=_folder(setting, "whole"), steps=STEPS, checkpoint_at=0), limit_s)
    if isinstance(whole, str):
        return {"error": f"run that is not stopped: {whole}"}
    killed = replace(given, work=_folder(setting, "killed"), steps=KILLED_AT, kill=True)
    before = _steps(entry, python, killed, limit_s)
    if isinstance(before, str):
        return {"error": f"run that is killed: {before}"}
    found: dict[str, Any] = {"first": _equal(before, whole)}
    for processes in WORKERS:
        if processes > 2 and not entry.launches:
            found[f"with {processes}"] = {"equal": None, "error": "", "is_refused": True}
            continue
        work = _folder(setting, f"again-{processes}")
        shutil.copytree(killed.work, work, dirs_exist_ok=True)
        again = replace(given, work=work, steps=STEPS - CHECKPOINT_AT, checkpoint_at=0, resume=True)
        steps = _steps(entry, python, replace(again, processes=processes), limit_s)
        equal = None if isinstance(steps, str) else _equal(steps, whole[CHECKPOINT_AT:])
        found[f"with {processes}"] = {"equal": equal, "error": steps if isinstance(steps, str) else ""}
    return found


def _folder(setting: LlmSetting, name: str) -> str:
    # The parent is the same for all, so that a run finds its cache after it was copied.
    folder = Path(f"{setting.work}-{name}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


def _steps(entry: LlmEntry, python: Path, setting: LlmSetting, limit_s: float) -> list[list[str]] | str:
    """Documents of each step over all ranks, or an error."""
    answers = take_turn(entry, python, setting, limit_s)
    if "error" in answers[0]:
        return str(answers[0]["error"])
    steps = zip(*(answer["steps"] for answer in answers), strict=True)
    return [sorted(document for rank in ranks for document in rank["documents"]) for ranks in steps]


def _equal(found: list[list[str]], expected: list[list[str]]) -> float:
    pairs = list(zip(found, expected, strict=False))
    return sum(left == right for left, right in pairs) / len(pairs)
