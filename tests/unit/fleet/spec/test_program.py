"""The job file of a task is called before anything is placed."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidJobSpec
from forebay.fleet.spec.program import load_program

JOB = """
import forebay as fb

def train(worker): ...

def job(data: str, epochs: int = 1, gpus: float = 0.0, batch: int = 64) -> fb.Job:
    plan = fb.build_plan(fb.scan(data), lanes=8)
    return fb.Job(train=train, data=fb.Data(plan=plan, global_batch=batch, transform=fb.Transform(x=fb.Dense(["x1"]))),
                  epochs=epochs, resources=fb.Resources(cpus=2, gpus=gpus))
"""


@pytest.fixture
def folder(tmp_path: Path, parquet_folder) -> Path:
    parquet_folder({"a.parquet": [40, 30]})
    (tmp_path / "train.py").write_text(JOB)
    return tmp_path


def spec_with(folder: Path, run: str = "train.py", cpu: int = 2, largest: int = 8, **args: object) -> fb.JobSpec:
    task = fb.fleet.Task(
        run=run,
        args={"data": str(folder / "data"), **args},  # type: ignore[dict-item]
        workers=fb.fleet.TaskWorkers(min=2, max=largest, cpu=cpu),  # type: ignore[arg-type]
    )
    return fb.JobSpec(name="ctr", storage=str(folder / "runs"), task=(task,))


def test_the_job_gets_name_storage_and_workers_of_the_spec(folder: Path) -> None:
    spec = spec_with(folder, epochs=3)
    job = load_program(spec, spec.task[0], folder)
    assert isinstance(job, fb.Job)
    assert (job.name, job.storage, job.epochs) == ("ctr", spec.storage, 3)
    assert job.elastic == fb.Elastic(min_workers=2, max_workers=8)
    fixed = spec_with(folder, largest=2)
    job = load_program(fixed, fixed.task[0], folder)
    assert isinstance(job, fb.Job) and (job.workers, job.elastic) == (2, None)
    command = fb.JobSpec(name="a", storage="b", task=(fb.fleet.Task(command=("true",)),))
    assert load_program(command, command.task[0]) is None


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"epocs": 3}, "no parameter 'epocs'. Did you mean 'epochs'?"),
        ({"epochs": "three"}, "epochs=three is not of type int"),
        ({"epochs": 0}, "epochs=0 cannot work"),
        ({"run": "missing.py"}, "there is no job file"),
        ({"cpu": 1}, "needs 2 cpu, and a worker of the task has 1"),
        ({"gpus": 1.0}, "needs 1 gpus, and a worker of the task has 0"),
        ({"largest": 16}, "16"),
    ],
)
def test_a_program_that_cannot_run_is_refused(folder: Path, wrong: dict[str, object], fault: str) -> None:
    spec = spec_with(folder, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobSpec) as error:
        load_program(spec, spec.task[0], folder)
    assert fault in str(error.value) and str(error.value).startswith("task[0].")


def test_a_file_that_does_not_import_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text("import fourbay")
    spec = spec_with(folder)
    with pytest.raises(InvalidJobSpec, match=r"line 1, does not load: ModuleNotFoundError"):
        load_program(spec, spec.task[0], folder)
