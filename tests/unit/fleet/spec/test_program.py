"""Arguments are checked against a job file without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidJobSpec
from forebay.fleet.spec.program import check_program

JOB = """
from __future__ import annotations
import sys
from pathlib import Path
from typing import Literal

import forebay as fb
import a_package_of_the_cluster

raise SystemExit("the module runs")

Order = Literal["shuffled", "sorted"]

def train(worker): ...

def job(
    data: str, epochs: int = 1, batch: int = 1 << 6, order: Order = "sorted", pause: fb.Seconds | None = None,
    hidden: tuple[int, ...] = (64, 32), model: a_package_of_the_cluster.Model = None, *, out: "Path" = Path("."), lr=0.1
) -> fb.Job:
    raise SystemExit("the job function is called")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(JOB)
    return tmp_path


def spec_with(run: str = "train.py", **args: object) -> fb.JobSpec:
    task = fb.fleet.Task(run=run, args={"data": "clicks", **args})  # type: ignore[dict-item]
    return fb.JobSpec(name="ctr", storage="s3://lake/runs", task=(task,))


def test_neither_the_module_nor_its_job_function_is_run(folder: Path) -> None:
    spec = spec_with(epochs=3, order="shuffled", pause="5 min", hidden="64,32", model="any", out="here", lr=1)
    check_program(spec, spec.task[0], folder)
    command = fb.JobSpec(name="a", storage="b", task=(fb.fleet.Task(command=("true",)),))
    check_program(command, command.task[0])


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"epocs": 3}, "no parameter 'epocs'. Did you mean 'epochs'? It takes:\n  data: str (required)\n  epochs: int"),
        ({"batch_size": 3}, "batch: int = 1 << 6"),
        ({"epochs": "three"}, "epochs=three is not of type int"),
        ({"order": "random"}, "order=random is not of type"),
        ({"pause": "soon"}, "pause=soon is not of type Seconds | None"),
        ({"hidden": "wide"}, "hidden=wide is not of type tuple[int, ...]"),
        ({"lr": "fast"}, "lr=fast is not of type float"),
        ({"run": "missing.py"}, "there is no job file"),
    ],
)
def test_a_program_that_cannot_run_is_refused(folder: Path, wrong: dict[str, object], fault: str) -> None:
    spec = spec_with(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobSpec) as error:
        check_program(spec, spec.task[0], folder)
    assert fault in str(error.value) and str(error.value).startswith("task[0].")


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        ("str | list[str]", ["a", "b"], """there '["a", "b"]' is '["a", "b"]', not ['a', 'b']"""),
        ("int | str", 5, "there '5' is '5', not 5"),
        ("int", True, "x=true is not of type int"),
        ("list[str]", ["a,b", "none"], None),
        ("float | int", 5, None),
        ("float", float("nan"), None),
        ("bool | None", False, None),
    ],
)
def test_an_argument_is_what_the_run_gets_by_its_command_line(
    tmp_path: Path, kind: str, value: object, fault: str | None
) -> None:
    (tmp_path / "train.py").write_text(f"def job(data: str, x: {kind}): ...")
    spec = spec_with(x=value)
    if fault is None:
        check_program(spec, spec.task[0], tmp_path)
        return
    with pytest.raises(InvalidJobSpec) as error:
        check_program(spec, spec.task[0], tmp_path)
    assert fault in str(error.value)


def test_a_required_parameter_is_asked_for(folder: Path) -> None:
    task = fb.fleet.Task(run="train.py")
    with pytest.raises(InvalidJobSpec, match=r"this job needs data=\.\.\."):
        check_program(fb.JobSpec(name="ctr", storage="runs", task=(task,)), task, folder)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def job(:", r"line 1, does not load: SyntaxError"),
        ("def train(worker): ...", r"defines no function 'sweep' or 'job'"),
        ("def job(data: str, *rest): ...", r"the job function takes \*rest"),
        ("def job(data, /): ...", r"the job function takes data\."),
        ("import fourbay\njob = fourbay.job", r"line 1, does not load: ModuleNotFoundError"),
    ],
)
def test_a_file_without_a_signature_is_refused(folder: Path, text: str, fault: str) -> None:
    (folder / "train.py").write_text(text)
    spec = spec_with()
    with pytest.raises(InvalidJobSpec, match=fault):
        check_program(spec, spec.task[0], folder)


@pytest.mark.parametrize(
    "text",
    [
        "from shared_jobs import job",
        "from shared_jobs import *",
        "import functools\n@functools.cache\ndef first(): ...\ndef plain(data: str): ...\njob = plain",
        "def same(function): return function\n@same\ndef job(data: str): ...",
        "def job(rows: int): ...\ndef job(data: str): ...",
    ],
)
def test_a_job_function_that_is_no_plain_definition_is_imported_and_not_called(folder: Path, text: str) -> None:
    (folder / "shared_jobs.py").write_text("def job(data: str): raise SystemExit('the job function is called')")
    (folder / "train.py").write_text(text)
    spec = spec_with()
    check_program(spec, spec.task[0], folder)
    wrong = spec_with(rows=3)
    with pytest.raises(InvalidJobSpec, match="no parameter 'rows'"):
        check_program(wrong, wrong.task[0], folder)


def test_a_sweep_comes_before_a_job_and_a_local_variable_binds_neither(folder: Path) -> None:
    (folder / "train.py").write_text("def sweep(trials: int = 2):\n    job = 1\n\ndef job(data: str): ...\n")
    task = fb.fleet.Task(run="train.py", args={"trials": 3})
    check_program(fb.JobSpec(name="ctr", storage="runs", task=(task,)), task, folder)


@pytest.mark.parametrize("order", ['list["Order"]', 'Literal["a", "b"] | Order'])
def test_a_type_that_names_itself_is_left_to_the_run(folder: Path, order: str) -> None:
    (folder / "train.py").write_text(f"Order = {order}\ndef job(data: str, order: Order): ...\n")
    spec = spec_with(order="any")
    check_program(spec, spec.task[0], folder)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="an alias is a statement of Python 3.12")
def test_an_alias_is_read_without_running_the_file(folder: Path) -> None:
    (folder / "train.py").write_text(
        "from typing import Literal\nraise SystemExit('the module runs')\n"
        "type Order = Literal['a', 'b']\ntype Sizes = list[int]\ntype Tree[T] = list[T | Tree[T]]\n"
        "def job[T](data: str, order: Order = 'a', sizes: Sizes | None = None, tree: Tree[int] = ()): ...\n"
    )
    right = spec_with(order="b", sizes="64,32", tree="any")
    check_program(right, right.task[0], folder)
    for wrong, fault in (({"order": "c"}, "'a' | 'b'"), ({"sizes": "wide"}, "list[int] | None")):
        spec = spec_with(**wrong)
        with pytest.raises(InvalidJobSpec) as error:
            check_program(spec, spec.task[0], folder)
        assert fault in str(error.value)
