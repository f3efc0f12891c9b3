"""Exit codes by kind, for every command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.unit.cli.conftest import JOB, TRAINING, Said

from forebay import errors
from forebay.cli.app import CODES, app_of
from forebay.errors import ExitCode, ForebayError
from forebay.fleet.client.submission import How, JobFiles, Submission, SubmissionEnd
from forebay.fleet.spec.job_spec import JobSpec, Task

Call = Callable[..., Said]
REFUSED = {
    "init": "nowhere",
    "scan": "nowhere",
    "plan": "nowhere.json",
    "rows": "nowhere",
    "series": "nowhere --past 3",
    "prepare job": "nowhere.py",
    "prepare ls": "nosuch://folder",
    "prepare rm": "nowhere",
    "warm": "nowhere.py",
    "cache ls": "--path nowhere",
    "cache verify": "--path nowhere",
    "cache clear": "--path nowhere",
    "run": "nowhere.py",
    "tables plan": "nowhere.py",
    "tables export": "nowhere --to out",
    "doctor": "nowhere.py",
    "report": "nowhere",
    "submit": "nowhere.toml",
    "jobs": "--storage nosuch://folder",
    "logs": "nowhere --storage .",
    "scale": "nowhere 2 --storage .",
    "stop": "nowhere --storage .",
    "fleet explain": "nowhere.toml",
    "fleet clusters": "--fleet nowhere.toml",
    "fleet controller": "--fleet nowhere.toml",
    "fleet rebuild": "--journal journal.db --storage . --fleet nowhere.toml",
    "fleet apply-cluster": "--catalogue nowhere.json --namespace ml",
    "fleet delete-cluster": "--catalogue nowhere.json --namespace ml",
    "fleet publish-capacity": "--catalogue nowhere.json --namespace ml",
    "llm memory": "model=nowhere",
    "llm export": "nowhere --to out",
    "llm score": "model=nowhere data=nowhere to=out",
    "llm evaluate": "metric=exact_match answers=nowhere expected=answer",
}
"""Words whose input does not exist, by command."""
WITHOUT_INPUT = {"fleet schema"}
NOT_REFUSED = {
    ExitCode.FAILED: (
        "RayNotStarted Cancelled PreparationFailed TransformFailed RowCountChanged "
        "AugmentFailed LoaderClosed RunFailed SweepFailed Diverged EngineFailed ScoringFailed Hung"
    ),
    ExitCode.MACHINE: "ReadFailed LimitReached WriteFailed CacheUnusable",
    ExitCode.USAGE: "BadUsage BadParameter",
    ExitCode.FENCED: "Fenced",
    ExitCode.UNUSABLE_STORAGE: "UnusableStorage StorageFull",
}
"""Errors by code. All others refuse input."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Paths and commands below one."""
    if not hasattr(command, "commands"):
        yield " ".join(path), command
    for name, each in getattr(command, "commands", {}).items():
        yield from leaves(each, (*path, name))


LEAVES = dict(leaves(typer.main.get_command(app_of())))


def test_each_command_has_a_case_and_names_the_codes_in_its_help() -> None:
    assert set(REFUSED) | WITHOUT_INPUT == set(LEAVES)
    assert {each.epilog for each in LEAVES.values()} == {CODES}
    assert all(f" {code.value} " in CODES for code in ExitCode)


@pytest.mark.parametrize("path", LEAVES)
def test_words_that_fit_no_command_are_2(forebay: Call, path: str) -> None:
    said = forebay(*path.split(), "--no-such-option")
    assert (said.code, said.out) == (ExitCode.USAGE, ""), said.err


@pytest.mark.parametrize("path", REFUSED)
def test_input_that_cannot_be_used_is_3(
    forebay: Call, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = forebay(*path.split(), *REFUSED[path].split())
    assert (said.code, said.out) == (ExitCode.REFUSED, ""), said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("path", LEAVES)
def test_ctrl_c_is_130(forebay: Call, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal arrives as the command begins."""
    monkeypatch.setattr(type(LEAVES[path]), "parse_args", lambda *_: signal.raise_signal(signal.SIGINT))
    assert forebay(*path.split()).code == ExitCode.INTERRUPTED


@pytest.mark.parametrize("words", ["run", "warm", "rows", "doctor", "prepare", "tables plan", "plan --mixture"])
@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("KeyboardInterrupt", ExitCode.INTERRUPTED),
        ("errors.Fenced('taken over')", ExitCode.FENCED),
        ("errors.UnusableStorage('read-only')", ExitCode.UNUSABLE_STORAGE),
        ("errors.WriteFailed('no room')", ExitCode.MACHINE),
    ],
)
def test_what_the_job_function_raises_decides(
    forebay: Call, tmp_path: Path, words: str, raised: str, code: ExitCode
) -> None:
    job = tmp_path / "ends.py"
    job.write_text(f"from forebay import errors\ndef job():\n    raise {raised}\n")
    assert forebay(*words.split(), job).code == code


def test_a_train_function_that_raises_is_a_failed_job(forebay: Call, job_words: Callable[..., list[str]]) -> None:
    words = job_words()
    head, _, _ = TRAINING.partition("def train(")
    Path(words[0]).write_text(f"{head}def train(worker, evaluate=None):\n    raise ValueError('no')\n{JOB}")
    assert forebay("run", "--driver", "local", *words).code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("how", "ended", "code"),
    [
        *(("failed", each, each) for each in (1, 3, 74, 78)),
        ("failed", -9, 137),
        ("failed", None, ExitCode.FAILED),
        ("refused", None, ExitCode.REFUSED),
        ("fenced", None, ExitCode.FENCED),
        ("stopped", None, 0),
        ("succeeded", None, 0),
    ],
)
def test_a_followed_job_ends_with_its_own_code(
    forebay: Call, tmp_path: Path, how: How, ended: int | None, code: int
) -> None:
    spec = JobSpec(name="ctr", storage=str(tmp_path), task=(Task(run="train.py"),))
    files = JobFiles(storage=str(tmp_path), name="ctr")
    files.create(Submission(spec=spec, number=1, backend="local", token="t"))
    files.end(1, SubmissionEnd(how=how, why="its words", code=ended))
    said = forebay("logs", "ctr", "--storage", tmp_path, "--follow")
    assert (said.code, said.out) == (code, f"ctr: {how}: its words\n")
    assert forebay("logs", "ctr", "--storage", tmp_path).code == 0


def test_each_error_has_the_code_of_its_kind() -> None:
    every = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ForebayError) and kind.__module__ == errors.__name__
    }
    known = {name: code for code, names in NOT_REFUSED.items() for name in names.split()}
    assert set(known) <= set(every)
    assert {name: kind.exit_status for name, kind in every.items()} == {
        name: known.get(name, ExitCode.REFUSED) for name in every
    }
