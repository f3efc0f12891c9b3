"""One grammar: short options, RUN as a name or a folder, and names that are meant."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.conftest import Said
from tests.unit.cli.test_exit_codes import LEAVES

from forebay.cli.settings import NamedRun
from forebay.errors import BadUsage
from forebay.storage.filesystem import resolve

Call = Callable[..., Said]
LETTERS = {
    "-b": {"--batch"},
    "-c": {"--columns"},
    "-d": {"--driver"},
    "-f": {"--follow"},
    "-h": {"--help"},
    "-j": {"--json"},
    "-n": {"--rows"},
    "-o": {"--out", "--to"},
    "-s": {"--storage"},
    "-t": {"--target"},
    "-w": {"--workers"},
}
"""What each letter means in every command. `-o` is where the result goes."""


def test_a_letter_means_the_same_in_all_commands() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for command in LEAVES.values():
        names = [each.opts for each in command.params if each.opts[0].startswith("-")]
        for options in names:
            long = next(option for option in options if option.startswith("--"))
            for short in set(options) - {long}:
                found[short].add(long)
            # An option that has a letter in one command has it in all.
            meant = [letter for letter, longs in LETTERS.items() if long in longs and letter not in options]
            assert not meant or long in ("--help", "--follow"), (command.name, long, meant)
    assert found == {letter: longs for letter, longs in LETTERS.items() if letter != "-h"}


@pytest.mark.parametrize("path", ["", *LEAVES])
def test_h_is_help(forebay: Call, path: str) -> None:
    said = forebay(*path.split(), "-h")
    assert said.code == 0 and "Usage:" in said.out


def test_a_run_is_a_name_or_a_folder(forebay: Call, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `runs/` of the working directory, in this one, in a storage that is named or known."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words in (["run"], ["runs/run"], ["./runs/run/"], [run], [f"file://{run}"], ["run", "-s", "runs"]):
        assert forebay("rows", *words, "--step", "1", "--names").code == 0, words
        said = forebay("report", *words, "-o", tmp_path / "page.html")
        assert said.code == 0, (words, said.err)
    monkeypatch.chdir(tmp_path / "runs")
    assert forebay("report", "run").code == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setenv("FOREBAY_STORAGE", str(tmp_path / "runs"))
    assert forebay("report", "run").code == 0


@pytest.mark.parametrize("words", ["report", "rows", "llm export -o out", "tables export -o out"])
def test_a_name_of_no_run_is_one_error(
    forebay: Call, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    command = words.split()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    said = forebay(*command, "rum")
    assert said.code == 3
    assert f"there is no run 'rum' in {tmp_path}/runs. Did you mean 'run'? Its runs are run." in said.err
    both = forebay(*command, "runs/rum", "--storage", "runs")
    assert both.code == 2 and "runs/rum is a folder, and --storage runs is for names" in both.err


@pytest.mark.parametrize("words", ["stop rum", "scale rum 2"])
def test_requests_to_no_run_are_the_same_error(
    forebay: Call, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = forebay(*words.split(), "-s", "runs")
    assert said.code == 3 and f"no run 'rum' in {tmp_path}/runs. Did you mean 'run'? Its runs are run." in said.err


@pytest.mark.parametrize("command", [["logs"], ["stop"], ["scale"]])
def test_jobs_and_runs_that_train_are_named_alike(forebay: Call, tmp_path: Path, command: list[str]) -> None:
    more = ["2"] if command == ["scale"] else []
    texts = {
        forebay(*command, *words, *more).err
        for words in (["ctr", "-s", tmp_path / "runs"], [tmp_path / "runs" / "ctr"], [f"{tmp_path}/runs/ctr/"])
    }
    assert len(texts) == 1 and str(tmp_path / "runs") in next(iter(texts))
    assert forebay(*command, "runs/ctr", *more, "--storage", "runs").code == 2


@given(st.text("abz-_0", min_size=1), st.lists(st.sampled_from(["a", "b c", "ü", ".."]), min_size=1, max_size=3))
def test_a_folder_is_its_storage_and_its_name(name: str, parts: list[str]) -> None:
    assert NamedRun.of(name) == NamedRun(name=name)
    assert NamedRun.of(name, "s3://lake/runs") == NamedRun(name=name, storage="s3://lake/runs")
    folder = "/".join(parts)
    found = NamedRun.of(f"{folder}/{name}")
    assert (found.name, found.storage) == (name, resolve(folder).uri)
    with pytest.raises(BadUsage):
        NamedRun.of(f"{folder}/{name}", "runs")


def test_names_that_are_meant(forebay: Call, tmp_path: Path, job_words: Callable[..., list[str]]) -> None:
    forebay("warm", *job_words())
    facts = json.loads(forebay("cache", "ls", "--path", tmp_path / "cache", "-j").out)
    cached = facts["datasets"][0]["dataset"]
    for words, meant in (
        (["rnu"], "'run'"),
        (["train"], "'run'"),
        (["export", "runs/t1"], "'llm export'"),
        (["fleet", "explan"], "'explain'"),
        (["run", "--drivr", "local"], "--driver"),
        (["scan", "data", "--colums", "x"], "--columns"),
        (["run", "-d", "loca", *job_words()], "'local'"),
        (["cache", "clear", "--path", tmp_path / "cache", "--dataset", cached[:-1]], "'data"),
        (["scan", tmp_path / "data", "--columns", "clickd"], "'clicked'"),
        (["run", "-d", "local", *job_words(epoch=1)], "'epochs'"),
    ):
        said = forebay(*words)
        assert "Did you mean" in said.err and meant in said.err, (words, said.err)
