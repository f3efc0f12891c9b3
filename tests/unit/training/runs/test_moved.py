"""A run continues where its folder is now, and never writes where it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption, RunFailed
from forebay.testing.drivers.bench import DriverBench, weights
from forebay.training.driver.driver import run
from forebay.training.run_report.recorded_run import load_run
from forebay.training.runs.attempts.stored_request import load_request, send_request
from forebay.training.runs.result import Result, load_result
from forebay.training.runs.rows.step_rows import rows_of_step

NAME = "ctr"


def moved(old: Path) -> Path:
    return old.rename(old.with_name("elsewhere"))


def renamed(old: Path) -> Path:
    (old / NAME).rename(old / "other")
    return old


def copied(old: Path) -> Path:
    return Path(shutil.copytree(old, old.with_name("copy")))


def copied_beside(old: Path) -> Path:
    shutil.copytree(old / NAME, old / "other")
    return old


def linked(old: Path) -> Path:
    """Move to another disk that the old name is a link to."""
    target = moved(old)
    old.symlink_to(target)
    return old


def mounted_elsewhere(old: Path) -> Path:
    link = old.with_name("mount")
    link.symlink_to(old)
    return link


def replaced(old: Path) -> Path:
    """Move, and another run takes the old name."""
    target = moved(old)
    (old / NAME).mkdir(parents=True)
    (old / NAME / "result.json").write_text("of another run")
    return target


WAYS = [moved, renamed, copied, copied_beside, linked, mounted_elsewhere, replaced]


def files_below(folder: Path) -> dict[str, str]:
    """Content of each file, without those of runs inside that are named otherwise."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def begun(bench: DriverBench, **options: Any) -> Result:
    """A run of which one epoch of two is trained."""
    return run(bench.job(NAME, epochs=1, **options), "local")


def same_run(found: Result, wanted: Result) -> bool:
    """Whether two runs of one job came to the same model, by the same steps."""
    models: list[Mapping[str, Any]] = [weights(found), weights(wanted)]
    metrics = [[epoch.metrics for epoch in result.epochs] for result in (found, wanted)]
    return metrics[0] == metrics[1] and all(models[0][name].equal(models[1][name]) for name in models[1])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> DriverBench:
    return DriverBench(tmp_path_factory.mktemp("moved"))


@pytest.fixture(scope="module")
def whole(bench: DriverBench) -> Result:
    return run(bench.job("whole"), "local")


@pytest.mark.parametrize("way", WAYS)
def test_it_continues_there_and_leaves_the_old_place_alone(
    way: Callable[[Path], Path], bench: DriverBench, whole: Result, tmp_path: Path
) -> None:
    old = tmp_path / "runs"
    earlier = begun(bench, storage=str(old))
    storage = way(old)
    name = "other" if (storage / "other").exists() else NAME
    is_same = (old / NAME).exists() and (storage / name).samefile(old / NAME)
    before = {} if is_same else files_below(old / NAME)
    found = load_result(str(storage / name))
    assert found is not None and replace(found, path=earlier.path) == earlier
    assert load_run(str(storage / name)).path == found.path == str(storage / name)
    result, trained = run(bench.job(name, storage=str(storage)), "local"), rows_of_step(whole.path, 12).rows
    assert (result.path, result.name) == (str(storage / name), name) and same_run(result, whole)
    assert [str(row) for row in rows_of_step(result.path, 12).rows] == list(map(str, trained))
    if not is_same:
        assert files_below(old / NAME) == before, "it wrote where the run was before"
    if (old / NAME / "job.json").exists() or way in (copied, copied_beside):
        original = run(bench.job(NAME, storage=str(old)), "local")
        assert original.path == str(old / NAME) and same_run(original, whole)
        assert load_result(result.path) == result, "the original wrote into its copy"


def test_a_result_in_memory_writes_no_report_where_the_run_was(bench: DriverBench, tmp_path: Path) -> None:
    old = tmp_path / "runs"
    result = begun(bench, storage=str(old))
    moved(old)
    with pytest.raises(InvalidOption, match="is not there. If it was moved"):
        result.show()
    assert not old.exists()


def test_a_copy_continues_beside_its_original_that_trains(bench: DriverBench, whole: Result, tmp_path: Path) -> None:
    old, copies = tmp_path / "runs", tmp_path / "copy"
    made: list[Result] = []
    job = bench.job(NAME, storage=str(old))

    def train(_: Any) -> None:
        shutil.copytree(old, copies)
        send_request(str(old), NAME, stop="only the original")
        made.append(run(bench.job(NAME, storage=str(copies)), "local"))
        assert load_request(str(copies / NAME), 3).stop is None
        raise RuntimeError("the original fails")

    begun(bench, storage=str(old))
    with pytest.raises(RunFailed, match="the original fails"):
        run(replace(job, train=train), "local")
    assert same_run(made[0], whole)
    original = run(job, "local")
    assert same_run(original, whole) and original.path != made[0].path
