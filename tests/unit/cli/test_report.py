"""`forebay report` writes one file about runs or a sweep.

It refuses what it cannot show.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.sweep.made import record, trial
from tests.unit.training.run_report.made import write_run

from forebay.cli.app import main
from forebay.sweep.record.record import save_record


def test_one_run_gets_its_report_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path)
    main_of("report", path, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["html"] == f"{path}/report.html" and Path(facts["html"]).exists()
    assert facts["runs"][0]["state"] == "finished" and facts["runs"][0]["incidents"][2]["gap_s"] == 1.65


def test_several_runs_are_written_where_they_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out" / "both.html"
    main_of("report", write_run(tmp_path, "a"), write_run(tmp_path, "b", lr=0.1), "--out", str(out))
    assert capsys.readouterr().out.strip() == str(out) and "What differed" in out.read_text()


def test_a_sweep_has_the_runs_of_its_best_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = record(trial("a", 0.6, 0.9, lr=0.001, state="finished"), trial("b", 0.7, lr=0.1))
    save_record(made, str(tmp_path))
    write_run(tmp_path / "runs", "ctr.a")
    main_of("report", str(tmp_path))
    page = (tmp_path / "sweep.html").read_text()
    assert "The run of the best trial" in page and "Side by side" in page
    save_record(record(trial("d")), str(tmp_path))
    main_of("report", str(tmp_path))
    page = (tmp_path / "sweep.html").read_text()
    assert "no trial has a value" in page and "Side by side" not in page
    capsys.readouterr()
    main_of("report", str(tmp_path), str(tmp_path), code=3)
    assert "Give the sweep alone" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("report", str(tmp_path), code=3)
    assert "not the folder of a run or a sweep" in capsys.readouterr().err


def test_a_folder_to_write_to_is_refused_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "doctor"):
        main_of(command, "nowhere", "--out", str(tmp_path), code=3)
        assert f"--out {tmp_path} is a folder. Give the name of a file." in capsys.readouterr().err


def main_of(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert (ended.value.code or 0) == code
