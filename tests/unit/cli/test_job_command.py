"""Parameters of a job as options, in the help, and words that are neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.cli.conftest import Said

Forebay = Callable[..., Said]
JOB = '''
import forebay as fb

def job(data: str, global_batch: int = 64, shuffle: bool = False) -> fb.Job:
    """Rows of one column."""
    plan = fb.build_plan(fb.scan(data), shuffle=shuffle, seed=7)
    transform = fb.Transform(x=fb.Dense(["x"]), label=fb.Label("x"))
    return fb.Job(train=print, data=fb.Data(plan=plan, transform=transform, global_batch=global_batch))
'''


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with `data/`, of two files, and `job.py`."""
    (tmp_path / "data").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"x": [float(number)] * 100}), tmp_path / "data" / f"{number}.parquet")
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [("--global-batch", "50"), ("--global_batch=50",), ("global_batch=50",)])
def test_a_parameter_has_three_forms(files: Path, forebay: Forebay, words: tuple[str, ...]) -> None:
    said = forebay("rows", "job.py", "data=data", *words, "--step", "1", "--json")
    assert said.code == 0, said.err
    assert len(json.loads(said.out)["rows"]) == 50


def test_parameters_may_come_before_the_file(files: Path, forebay: Forebay) -> None:
    said = forebay("rows", "--data", "data", "--shuffle", "job.py", "--json", "--global-batch", "50", "--step", "1")
    assert said.code == 0, said.err
    assert len(json.loads(said.out)["rows"]) == 50
    missing = forebay("rows", "--data", "data")
    assert missing.code == 2 and "Missing argument" in missing.err


@pytest.mark.parametrize("words", [("--storage", "x"), ("storage=x",)])
def test_an_option_for_runs_is_a_parameter_of_a_job(files: Path, forebay: Forebay, words: tuple[str, ...]) -> None:
    refused = forebay("rows", "job.py", "data=data", *words)
    assert refused.code == 2 and "no parameter 'storage'" in refused.err
    (files / "job.py").write_text(JOB.replace("shuffle: bool", "storage: str = 'runs', shuffle: bool"))
    assert forebay("rows", "job.py", "data=data", *words).code == 0


def test_a_flag_is_true(files: Path, forebay: Forebay) -> None:
    shuffled, in_order = (forebay("rows", "job.py", "--data", "data", *flag, "--json") for flag in (["--shuffle"], []))
    assert json.loads(shuffled.out)["rows"] != json.loads(in_order.out)["rows"]


def test_help_lists_the_parameters_of_the_file(files: Path, forebay: Forebay) -> None:
    said = forebay("run", "job.py", "--help")
    assert said.code == 0
    assert "data: str (required)" in said.out
    assert "global_batch: int = 64" in said.out
    assert "Parameters of job.py" not in forebay("run", "--help").out


def test_a_misspelled_option_is_no_parameter(files: Path, forebay: Forebay) -> None:
    said = forebay("rows", "job.py", "data=data", "--jsno")
    assert said.code == 2 and "--json" in said.err


def test_an_unknown_parameter_is_refused_with_the_known_ones(files: Path, forebay: Forebay) -> None:
    said = forebay("rows", "job.py", "data=data", "--global-bach", "50")
    assert said.code == 2
    assert "no parameter 'global_bach'. Did you mean 'global_batch'?" in said.err


def test_files_that_the_shell_has_named_are_one_dataset(files: Path, forebay: Forebay) -> None:
    said = forebay("scan", "data/0.parquet", "data/1.parquet", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["rows"] == 200
    assert json.loads(said.out)["manifest"] == "data.manifest.json"


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch, forebay: Forebay) -> None:
    monkeypatch.setenv("_FOREBAY_COMPLETE", "complete_bash")
    for typed, meant in (("forebay ru", "run"), ("forebay run --dr", "--driver")):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
        assert meant in forebay().out.split()


def test_help_of_a_missing_file_is_refused(files: Path, forebay: Forebay) -> None:
    said = forebay("run", "missing.py", "--help")
    assert said.code == 3 and "there is no job file 'missing.py'" in said.err
