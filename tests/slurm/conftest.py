"""A SLURM cluster for the tests of this folder, and jobs on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.slurm.cluster import SlurmCluster, until, what_is_missing

from forebay.fleet.client.submit import submit
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.testing.data.click_log import write_click_log
from forebay.training.runs.result import Result

ROOT = Path(__file__).parents[2]
ENDS_S = 600.0
JOB = """
name = "{name}"
storage = "{storage}"
[[task]]
run = "{run}"
args = {{data = "{data}", record = "{record}", step_s = {step_s}, epochs = {epochs}, workers = {workers}}}
workers = {{min = {workers}, cpu = 1}}
[launch]
env = {{OMP_NUM_THREADS = 1, OPENBLAS_NUM_THREADS = 1}}
[launch.slurm]
nodes = {nodes}
time = "1h"
"""
Step = tuple[int, int]


@dataclass(frozen=True)
class TrainedBatch:
    """A batch that a rank has trained on."""

    step: Step
    digest: str
    time: float
    restarts: int
    host: str


@dataclass
class Jobs:
    """Jobs of a test's cluster, with their records."""

    cluster: SlurmCluster
    folder: Path

    @property
    def storage(self) -> str:
        return str(self.folder / "runs")

    def write(self, name: str, **values: object) -> Path:
        """Write the job file of the demo. Returns its path."""
        code = self.folder / f"code-{name}"
        code.mkdir()
        (self.folder / name).mkdir()
        shutil.copy(ROOT / "jobs" / "train_ctr.py", code)
        for file in (Path(__file__).parent / "jobs").glob("*.py"):
            shutil.copy(file, code)
        given = {"run": "recorded_ctr.py", "step_s": 0.05, "nodes": 2, "workers": 2, "epochs": 1} | values
        text = JOB.format(
            name=name, storage=self.storage, data=self.folder / "clicks", record=self.folder / name, **given
        )
        (code / "job.toml").write_text(text)
        return code / "job.toml"

    def submit(self, name: str, **values: object) -> SubmittedJob:
        return submit(self.write(name, **values), "slurm")

    def job_of(self, name: str) -> str:
        """SLURM's number of the newest job."""
        found = self.cluster.call("squeue", "--noheader", "--states=all", "--sort=i", "--format=%i %j").splitlines()
        return [line.split()[0] for line in found if f"fb-{name}-" in line][-1]

    def steps(self, name: str, rank: int = 0) -> list[TrainedBatch]:
        """Batches of a rank, in the order of time."""
        path = self.folder / name / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [_recorded(json.loads(line)) for line in lines if line.endswith("}")]

    def wait_steps(self, name: str, count: int, *, restarts: int = 0) -> list[TrainedBatch]:
        """Wait until `count` batches were trained on after so many restarts."""
        found: list[TrainedBatch] = []

        def look() -> bool:
            found[:] = [each for each in self.steps(name) if each.restarts == restarts]
            return len(found) >= count

        try:
            until(look, f"{count} steps of {name} after {restarts} restarts", ENDS_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said(name)}") from error
        return found

    def result(self, job: SubmittedJob) -> Result:
        """Wait for the result."""
        try:
            found = job.wait(ENDS_S)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.said(job.name)}") from error
        assert found is not None
        return found

    def said(self, name: str) -> str:
        """All that a job has written, for a failed test."""
        logs = [*(self.folder / f"code-{name}").glob("slurm-*.out"), *(self.folder / "runs" / name / "logs").glob("*")]
        return "\n".join(f"== {path.name}\n{path.read_text()[-4000:]}" for path in logs) + self.cluster.call("squeue")


def _recorded(facts: Mapping[str, object]) -> TrainedBatch:
    step = (int(str(facts["epoch"])), int(str(facts["position"])))
    time, restarts = float(str(facts["time"])), int(str(facts["restarts"]))
    return TrainedBatch(step, str(facts["digest"]), time, restarts, str(facts["host"]))


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    if missing := what_is_missing():
        pytest.skip(f"no SLURM cluster can be started: {missing}")
    # Short: paths of sockets lie in it.
    folder = Path(tempfile.mkdtemp(prefix="fb-slurm-"))
    try:
        with SlurmCluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def jobs(slurm: SlurmCluster, click_log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH", "RAY_"))]:
        monkeypatch.delenv(name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, slurm.environment[name])
    yield Jobs(slurm, click_log)
    slurm.call("scancel", f"--user={os.getuid()}", "--signal=KILL", check=False)
    slurm.wait_idle()


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slurm-jobs")
    write_click_log(folder / "clicks", rows=30_000, files=2, row_groups_per_file=10)
    return folder


@pytest.fixture(autouse=True)
def term_ends_pytest() -> Iterator[None]:
    """Tests of SIGTERM leave the handler of this process as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before
