"""Batch scripts: what a job asks of SLURM, and values that stay words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.client.backend import backend_of
from forebay.fleet.client.slurm_backend import script_of
from forebay.fleet.client.submission import VARIABLE, Submission
from forebay.fleet.client.submit import submit
from forebay.fleet.slurm.script import batch_script, options_of, time_text
from forebay.fleet.spec.canonical import key_of
from forebay.fleet.spec.job_spec import JobSpec, Launch, Slurm, Task, TaskWorkers
from forebay.fleet.spec.job_toml import parse_job_spec

ROOT = Path(__file__).parents[4]
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))"
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)


def spec_with(workers: Mapping[str, Any] | None = None, **slurm: Any) -> JobSpec:
    task = Task(run="train.py", workers=TaskWorkers(**(workers or {})))
    return JobSpec(name="ctr", storage="/shared/runs", task=(task,), launch=Launch(slurm=Slurm(**slurm)))


def options(spec: JobSpec) -> list[str]:
    return list(options_of(spec, name="fb-ctr-1", comment="fb-ctr-1-1"))


def test_resources_of_a_node_are_those_of_its_workers() -> None:
    found = options(
        spec_with({"min": 4, "max": 8, "cpu": "1500m", "memory": "2Gi", "gpus": 1}, nodes="2-4", partition="gpu,long",
                  account="p_1", qos="high", constraint="(a100|h100)&nvlink", time="1d2h", stop_before="2m",
                  exclusive=True)
    )  # fmt: skip
    assert found == [
        *("--job-name=fb-ctr-1", "--comment=fb-ctr-1-1", "--dependency=singleton"),
        *("--nodes=2-4", "--ntasks-per-node=1", "--cpus-per-task=3", "--mem=4096M", "--gpus-per-node=2"),
        *("--partition=gpu,long", "--account=p_1", "--qos=high", "--constraint=(a100|h100)&nvlink"),
        *("--time=1-02:00:00", "--exclusive", "--signal=B:TERM@120", "--requeue", "--open-mode=append"),
    ]
    named = options(spec_with({"gpus": 4}, gres="gpu:a100:4"))
    assert "--gres=gpu:a100:4" in named
    assert not [each for each in named if each.startswith("--gpus")]


def test_times_have_days() -> None:
    assert [time_text(each) for each in (60, 3600.5, 90_061)] == ["0-00:01:00", "0-01:00:01", "1-01:01:01"]


@given(TEXTS, TEXTS)
def test_values_stay_words(word: str, value: str) -> None:
    script = batch_script([], {"VALUE": value}, [sys.executable, "-c", ECHO, word], python="echo")
    # The last line, without the words before the command.
    script = script.replace("exec echo -m forebay.fleet.slurm.allocation --", "exec")
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(done.stdout) == [[word], value]


@given(st.sampled_from(["partition", "account", "qos", "reservation", "constraint", "gres"]), TEXTS)
def test_options_have_no_space_quote_or_line_break(name: str, value: str) -> None:
    try:
        found = options(spec_with(**{name: value}))
    except InvalidJobSpec:
        return
    assert f"--{name}={value}" in found
    assert not set(value) & set(" \t\r\n\v\f'\"\\#$`;<>\x85\u2028")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('partition = "gpu; rm"', r"line 6: launch\.slurm\.partition: 'gpu; rm' cannot be this option"),
        ('acount = "x"', r"launch\.slurm\.acount: this key is unknown\. Did you mean 'account'"),
        ('nodes = "4-2"', r"launch\.slurm\.nodes: '4-2' cannot work"),
        ('nodes = "two"', r"launch\.slurm\.nodes: It must be a number or a range"),
        ('time = "1m"', r"launch\.slurm\.time: 60 s is too short"),
        ('stop_before = "1s"', r"launch\.slurm\.stop_before: 1 s cannot work"),
    ],
)
def test_wrong_options_are_refused_by_name(lines: str, said: str) -> None:
    text = f'name = "ctr"\nstorage = "/runs"\n[[task]]\nrun = "x.py"\n[launch.slurm]\n{lines}\n'
    with pytest.raises(InvalidJobSpec, match=said):
        parse_job_spec(text)


def test_what_slurm_cannot_give_is_refused_by_name() -> None:
    with pytest.raises(InvalidJobSpec, match=r"task\[0\]\.workers\.min: min=8 workers do not fit on 2 nodes .*'4-4'"):
        options(spec_with({"min": 8}, nodes="2-4"))
    with pytest.raises(InvalidJobSpec, match=r"launch\.image: it is for pods .* --backend fleet"):
        options(replace(spec_with(), launch=Launch(image="x")))


def test_a_job_without_these_options_keeps_its_key() -> None:
    spec = parse_job_spec('name = "ctr"\nstorage = "/runs"\n[[task]]\nrun = "x.py"\n')
    assert key_of(spec) == "8568acbf959862009fdae02fc8f70368627179116bb4549a968edd4534478162"
    assert key_of(replace(spec, launch=Launch(slurm=Slurm()))) != key_of(spec)


def test_a_script_holds_its_submission() -> None:
    submission = Submission(spec=spec_with(), number=3, backend="slurm", token="t", folder="/home/me/it's")
    script = script_of(submission)
    line = next(line for line in script.splitlines() if line.startswith(f"export {VARIABLE}="))
    done = subprocess.run(
        ["bash", "-c", f"{line}; printenv {VARIABLE}"], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert Submission.from_json(done.stdout) == submission
    assert "--shared /shared/runs/ctr -- " in script


def test_a_script_asks_no_storage() -> None:
    """A file system of this scheme cannot be opened."""
    spec = replace(spec_with(), storage="nosuch://lake/runs")
    assert "--shared" not in script_of(Submission(spec=spec, number=1, backend="slurm", token="t"))


def test_without_slurm_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        backend_of("slurm", "east").is_alive(Submission(spec=spec_with(), number=1, backend="slurm", token="")) is None
    )
    (tmp_path / "job.toml").write_text(
        f'name = "x"\nstorage = "{tmp_path}/runs"\n[[task]]\ncommand = ["true"]\n'
    )  # fmt: skip
    with pytest.raises(InvalidOption, match=r"sbatch cannot be run here .*login node"):
        submit(tmp_path / "job.toml", "slurm")


def test_the_script_for_sbatch_asks_what_a_submission_asks() -> None:
    text = (ROOT / "deploy/slurm/forebay.sbatch").read_text()
    asked = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {"--signal=B:TERM@90", "--requeue", "--open-mode=append", "--ntasks-per-node=1"} <= asked & set(
        options(spec_with())
    )
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
