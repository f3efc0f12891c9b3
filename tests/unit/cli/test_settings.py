"""Storage of a command: option, variable, file, in this order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.conftest import Said

from forebay.cli.app import COMMANDS, app_of
from forebay.cli.settings import VARIABLE, load_settings, storage_or_known
from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles, Submission, SubmissionEnd
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.storage.filesystem import resolve
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.attempts.stored_request import load_request

Forebay = Callable[..., Said]


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "forebay" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


def made_job(storage: Path, name: str) -> JobFiles:
    spec = JobSpec(name=name, storage=str(storage), task=(Task(run="train.py"),))
    files = JobFiles(storage=str(storage), name=name)
    files.create(Submission(spec=spec, number=1, backend="fleet", token="t"))
    return files


def test_option_before_variable_before_file(
    user_file: Path, tmp_path: Path, forebay: Forebay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("file", "variable", "option"):
        made_job(tmp_path / name, f"of-{name}")

    def listed(*words: object) -> list[str]:
        return [each["name"] for each in json.loads(forebay("jobs", *words, "--json").out)["jobs"]]

    none = forebay("jobs")
    assert none.code == 2
    assert all(word in none.err for word in ("--storage URI", VARIABLE, str(user_file), "--ray"))
    user_file.write_text(f'storage = "{tmp_path}/file"')
    assert listed() == ["of-file"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "variable"))
    assert listed() == ["of-variable"]
    assert listed("--storage", tmp_path / "option") == ["of-option"]
    both = listed("--storage", tmp_path / "option", "--storage", tmp_path / "file")
    assert both == ["of-option", "of-file"]
    monkeypatch.setenv(VARIABLE, "")
    assert listed() == ["of-file"], "an empty variable is none"
    assert forebay("logs", "of-file").code == 0
    assert "exclude each other" in forebay("jobs", "--ray", "--storage", tmp_path / "file").err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('storag = "/a"', "the key 'storag' is unknown. Did you mean 'storage'?"),
        ("storage = 3", "storage = 3 is not a text"),
        ('storage = " "', "storage = ' ' is not a text"),
        ('storage = "runs"', "depends on the working directory"),
        ("storage = ", "cannot be read"),
        ("storage = " + "9" * 5000, "cannot be read"),
        ("storage = " + "[" * 5000, "cannot be read"),
        ('[storage]\nuri = "/a"', "is not a text"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_fault_of_the_file_is_named(user_file: Path, forebay: Forebay, text: str, says: str) -> None:
    user_file.write_bytes(text.encode(errors="surrogateescape"))
    said = forebay("jobs")
    assert (said.code, "InvalidOption" in said.err) == (3, True)
    assert says in " ".join(said.err.split())
    user_file.unlink()
    user_file.mkdir()
    with pytest.raises(InvalidOption, match="cannot be read"):
        load_settings(user_file)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text() | st.integers() | st.booleans()))
def test_a_file_is_read_rightly_or_refused(tmp_path_factory: pytest.TempPathFactory, facts: dict[str, Any]) -> None:
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_text("".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in facts.items()), "utf-8")
    try:
        found = load_settings(file)
    except InvalidOption:
        assert facts
    else:
        assert facts == ({} if found.storage is None else {"storage": found.storage})


def test_stop_and_scale_find_what_is_under_way_in_the_known_storage(
    user_file: Path, tmp_path: Path, forebay: Forebay
) -> None:
    """A job that has no attempt yet is asked before its first step."""
    user_file.write_text(f'storage = "{tmp_path}/runs"')
    files = made_job(tmp_path / "runs", "ctr")
    run = AttemptFiles(f"{tmp_path}/runs/ctr")
    said = forebay("stop", "ctr", "--reason", "enough")
    assert (said.code, "Attempt 1 reads it" in said.out) == (0, True), said.err
    assert load_request(run.run, 1).stop == "enough"
    assert create_attempt(run.run, 1) is not None
    assert forebay("scale", "ctr", 4).code == 0
    assert (load_request(run.run, 1).stop, load_request(run.run, 1).target) == ("enough", 4)
    run.end(1, AttemptEnd(how="stopped"))
    files.end(1, SubmissionEnd(how="stopped", why="enough"))
    ended = forebay("stop", "ctr", "--storage", tmp_path / "runs")
    assert (ended.code, "has ended (stopped): nothing was changed" in ended.err) == (3, True)
    plain = AttemptFiles(f"{tmp_path}/runs/plain")
    assert create_attempt(plain.run, 1) is not None
    assert forebay("stop", "plain").code == 0 and load_request(plain.run, 1).stop == "forebay stop"


def test_only_the_called_command_is_imported() -> None:
    assert {name.name for name in app_of(["stop", "jobs"]).registered_commands} == {"stop"}
    every = app_of(["--help"])
    names = [each.name for each in (*every.registered_commands, *every.registered_groups)]
    assert sorted(map(str, names)) == sorted(COMMANDS)


def test_a_relative_variable_is_a_folder_of_this_shell(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "runs")
    assert resolve(storage_or_known(None)).path == str(Path("runs").absolute())
