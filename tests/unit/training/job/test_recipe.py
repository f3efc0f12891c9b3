from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.errors import BadJob, ExitCode, InvalidOption, ReadFailed
from forebay.training.job.job import Job
from forebay.training.job.recipe import call_recipe, job_file, load_recipe, parameters

FILE = """
from __future__ import annotations
from dataclasses import dataclass

LOADED = []

@dataclass
class Options:
    size: int = 1

def job(data: str, workers: int = 1, epochs: int = 3, lr: float = 1e-3, hidden: tuple[int, ...] = (64,), note=None):
    return {"data": data, "workers": workers, "epochs": epochs, "lr": lr, "hidden": hidden, "note": note}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "train.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def recipe(make_job: Callable[..., Job]) -> Callable[..., Job]:
    def job(data: str, workers: int = 1, epochs: int = 3, seed: int | None = None) -> Job:
        return make_job(workers=workers, epochs=epochs, seed=seed or 0, name=data)

    return job


def test_a_file_is_loaded_by_path(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(FILE, "json.py")
    loaded = load_recipe(path)
    assert loaded(data="here")["epochs"] == 3
    assert sys.modules[loaded.__module__].__file__ == path
    assert loaded.__module__ != "json" and "dumps" in dir(sys.modules["json"])
    monkeypatch.chdir(tmp_path)
    assert load_recipe("json.py").__module__ == loaded.__module__


def test_parameters_are_the_signature(write: Callable[..., str]) -> None:
    found = [str(parameter) for parameter in parameters(load_recipe(write(FILE)))]
    assert found == [
        "data: str (required)",
        "workers: int = 1",
        "epochs: int = 3",
        "lr: float = 0.001",
        "hidden: tuple[int, ...] = (64,)",
        "note: str = None",
    ]


def test_words_are_turned_into_values(recipe: Callable[..., Job]) -> None:
    job = call_recipe(recipe, {"data": "clicks", "workers": "2", "seed": "none"})
    assert (job.name, job.workers, job.epochs, job.seed) == ("clicks", 2, 3, 0)
    assert call_recipe(recipe, {"data": "clicks", "workers": 4}).workers == 4


def test_an_unknown_parameter(recipe: Callable[..., Job]) -> None:
    with pytest.raises(BadJob) as caught:
        call_recipe(recipe, {"data": "x", "worker": "2"})
    message = str(caught.value)
    assert "no parameter 'worker'. Did you mean 'workers'?" in message
    assert "\n  data: str (required)\n  workers: int = 1\n  epochs: int = 3\n  seed: int | None = None" in message
    with pytest.raises(BadJob) as caught:
        call_recipe(recipe, {"data": "x", "zzz": "2"})
    assert "Did you mean" not in str(caught.value)


def test_a_missing_parameter(recipe: Callable[..., Job]) -> None:
    with pytest.raises(BadJob, match=r"this job needs data=\.\.\.\. It takes:\n  data: str \(required\)"):
        call_recipe(recipe, {"workers": "2"})


def test_a_value_of_the_wrong_type(recipe: Callable[..., Job]) -> None:
    with pytest.raises(BadJob, match=r"workers=two is not of type int"):
        call_recipe(recipe, {"data": "x", "workers": "two"})


def test_an_answer_that_is_no_job(write: Callable[..., str]) -> None:
    with pytest.raises(BadJob, match=r"job\(\) returned dict, not a Job"):
        call_recipe(load_recipe(write(FILE)), {"data": "x"})


def test_what_the_recipe_raises_goes_through(recipe: Callable[..., Job]) -> None:
    with pytest.raises(InvalidOption, match="epochs=0"):
        call_recipe(recipe, {"data": "x", "epochs": "0"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"defines no function 'job'"),
        ("job = 3\n", r"defines no function 'job'"),
        ("def job(:\n", r"train.py, line 1, does not load: SyntaxError"),
        ("x = 1\n\nimport no_such_module_at_all\n", r"train.py, line 3, does not load: ModuleNotFoundError.*no_such"),
        ("def f():\n    return 1 / 0\nf()\n", r"line 2, does not load: ZeroDivisionError"),
        ("raise SystemExit(3)\n", r"line 1, does not load: SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_load(write: Callable[..., str], text: str, message: str) -> None:
    before = set(sys.modules)
    with pytest.raises(BadJob, match=message):
        load_recipe(write(text))
    if "does not load" in message:
        assert not [name for name in set(sys.modules) - before if name.startswith("forebay_job_")]


@pytest.mark.parametrize(
    "text",
    [
        *(f"raise OSError({code}, 'x')\n" for code in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ETIMEDOUT)),
        f"try:\n    raise OSError({errno.EIO}, 'x')\nexcept OSError:\n    raise ValueError('no rows')\n",
        f"raise ImportError('libx.so: cannot read file data: {os.strerror(errno.EIO)}')\n",
    ],
)
def test_a_fault_of_the_machine_is_not_one_of_the_file(write: Callable[..., str], text: str) -> None:
    with pytest.raises(ReadFailed, match=r"train.py, line \d, cannot be loaded: .*on another machine") as caught:
        load_recipe(write(text))
    assert caught.value.exit_status == ExitCode.MACHINE


@pytest.mark.parametrize(
    "text",
    [
        "open('/no/such/file')\n",
        "open('/')\n",
        "import no_such_module\n",
        f"try:\n    raise OSError({errno.EIO}, 'x')\nexcept OSError:\n    pass\nopen('/no/such/file')\n",
        f"try:\n    raise OSError({errno.EIO}, 'x')\nexcept OSError:\n    raise ValueError('x') from None\n",
        "raise OSError('of the file itself')\n",
        "try:\n    raise ValueError\nexcept ValueError as error:\n    raise error from error\n",
    ],
)
def test_an_error_of_the_file_stays_final(write: Callable[..., str], text: str) -> None:
    with pytest.raises(BadJob, match="does not load"):
        load_recipe(write(text))


def test_a_file_system_that_fails_hides_no_job_file(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(FILE)

    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "stat", stale)
    with pytest.raises(ReadFailed, match="Stale file handle"):
        job_file(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(BadJob, match=r"no job file .* job\(\.\.\.\) -> Job"):
            load_recipe(str(path))


def test_errors_of_forebay_in_a_file_stay_themselves(write: Callable[..., str]) -> None:
    with pytest.raises(InvalidOption, match="too bad"):
        load_recipe(write("from forebay.errors import InvalidOption\nraise InvalidOption('too bad')\n"))


def test_signatures_that_cannot_be_a_command_line(write: Callable[..., str]) -> None:
    with pytest.raises(BadJob, match=r"takes \*\*options"):
        parameters(load_recipe(write("def job(**options): pass\n")))
    with pytest.raises(BadJob, match=r"annotation of job\(\) does not evaluate .*Missing"):
        parameters(load_recipe(write("from __future__ import annotations\ndef job(x: Missing): pass\n")))


def test_a_changed_file_is_loaded_anew(write: Callable[..., str]) -> None:
    path = write("def job(): return 1\n")
    assert load_recipe(path)() == 1
    # Same size, same second: cached bytecode, checked by size and time, would pass for the new text's.
    stat = Path(path).stat()
    write("def job(): return 2\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert load_recipe(path)() == 2
    assert not (Path(path).parent / "__pycache__").exists()


def test_tracebacks_show_the_source(write: Callable[..., str]) -> None:
    loaded = load_recipe(write("def job():\n    raise KeyError('deep inside')\n"))
    with pytest.raises(KeyError) as caught:
        call_recipe(loaded, {})
    assert "raise KeyError('deep inside')" in "".join(traceback.format_exception(caught.value))
