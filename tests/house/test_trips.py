"""Traced trips: how many modules a reader follows from a call to its result. Prints what it counts (`pytest -s`)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.fleet.client.submission import JobFiles, Submission, SubmissionEnd
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.training.runs.attempts.files import AttemptFiles, AttemptHeartbeat
from forebay.training.runs.attempts.start import create_attempt
from forebay.training.runs.result import Result, save_result

MOST_LOADED = 100
"""Modules of the package that a command about jobs may load."""
HEAVY = ("torch", "ray", "pandas", "numba", "pyarrow.dataset")
MOST_MODULES = {"cold batch": 64, "cached batch": 49, "run": 76, "commit": 46}


def test_trips_stay_short(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.house.trips", str(tmp_path)],
        check=True, capture_output=True, text=True, cwd=repository,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    for trip, calls in found.items():
        print(f"{trip}: {len(calls['modules'])} modules, {calls['functions']} functions")
    counts = {trip: len(calls["modules"]) for trip, calls in found.items()}
    assert counts.keys() == MOST_MODULES.keys()
    assert {trip: calls["modules"] for trip, calls in found.items() if counts[trip] > MOST_MODULES[trip]} == {}


LOADED = """
import sys
from forebay.cli.app import main
try:
    main({words!r})
except SystemExit as ended:
    ours = sorted(name for name in sys.modules if name.startswith("forebay."))
    print([ended.code, [name for name in {heavy!r} if name in sys.modules], len(ours), ours])
"""


@pytest.mark.parametrize(
    "words", [["jobs"], ["jobs", "--json"], ["logs", "demo"], ["stop", "demo"], ["scale", "demo", "2"]]
)
def test_commands_about_jobs_load_little(tmp_path: Path, words: list[str]) -> None:
    """0.7 s of processor time, where an import of torch alone takes 3 s."""
    files = JobFiles(storage=str(tmp_path), name="demo")
    spec = JobSpec(name="demo", storage=str(tmp_path), task=(Task(run="train.py"),))
    files.create(Submission(spec=spec, number=1, backend="local", token="t"))
    run = AttemptFiles(f"{tmp_path}/demo")
    assert create_attempt(run.run, 1) is not None
    run.beat(1, AttemptHeartbeat(number=1, epochs=2, world_size=1))
    save_result(Result(name="demo", path=f"{tmp_path}/demo", plan_id="", num_epochs=2))
    if words[0] == "jobs":
        files.end(1, SubmissionEnd(how="succeeded"))
    code = LOADED.format(words=words, heavy=HEAVY)
    environment = {**os.environ, "FOREBAY_STORAGE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    ended, heavy, count, ours = ast.literal_eval(done.stdout.splitlines()[-1])
    print(f"{' '.join(words)}: {count} modules")
    assert (ended, heavy) == (0, []), done.stderr
    assert count <= MOST_LOADED, ours
