"""A specification reaches another process complete, although that process does not have the user's files."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

from forebay.errors import BadJob
from forebay.testing.drivers.bench import DriverBench
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.job.job import Job
from forebay.training.runs.worker_spec import WorkerSpec, pack, unpack

MODULE = """
RATE = 0.5
def scaled(x):
    return x * RATE
def train(worker):
    return scaled(worker)
"""


def spec_of(job: Job) -> WorkerSpec:
    return WorkerSpec(
        name="a",
        train=job.train,
        train_spec=job.train_spec,
        resources=job.resources,
        cache=job.cache,
        checkpoint_config=CheckpointConfig(uri="/runs/a/checkpoints"),
    )


def test_round_trip(tmp_path: Path) -> None:
    job = DriverBench(tmp_path).job("a")
    spec = unpack(pack(spec_of(job)))
    assert spec.train_spec.data.plan.id == job.data.plan.id
    assert spec.train_spec.data.transform.fingerprint == job.data.transform.fingerprint
    assert spec.resources == job.resources


def test_code_of_the_users_files_travels_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "somewhere" / "my_training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "somewhere")
    import my_training  # type: ignore[import-not-found]

    registered = cloudpickle.list_registry_pickle_by_value()
    try:
        payload = tmp_path / "payload"
        payload.write_bytes(pack(spec_of(replace(DriverBench(tmp_path).job("a"), train=my_training.train))))
        code = (
            f"from forebay.training.runs.worker_spec import unpack; from pathlib import Path; "
            f"print(unpack(Path({str(payload)!r}).read_bytes()).train(8)); "
            "import sys, forebay.training.driver.local.driver; assert 'ray' not in sys.modules"
        )
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert answer.stdout.strip() == "4.0", answer.stderr
        assert cloudpickle.list_registry_pickle_by_value() == registered
    finally:
        del sys.modules["my_training"]


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    job, lock = DriverBench(tmp_path).job("a"), threading.Lock()

    def train(worker: object, guard: object = None) -> None:
        with lock:
            print(worker, guard)

    reason = r"\(TypeError: cannot pickle '_thread.lock'"
    with pytest.raises(BadJob, match=rf"train function train .*variable 'lock' {reason}.* within train, or use"):
        pack(spec_of(replace(job, train=train)))
    with pytest.raises(BadJob, match=rf"train function dict .*: argument 'guard' {reason}"):
        pack(spec_of(replace(job, train=partial(dict, guard=lock))))
