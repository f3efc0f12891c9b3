"""`forebay doctor` as a user calls it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import JOB, TRAINING, Said

Command = Callable[..., Said]
Words = Callable[..., list[str]]

BAD_LOOPS = {
    "no loader": ("    worker.setup(Model(), partial(torch.optim.SGD, lr=0.01))", "without worker.loader()"),
    "ends early": ("    for batch in worker.loader():\n        break", "ended by itself after 1 batches"),
    "raises": ("    for batch in worker.loader():\n        raise KeyError('color')", "raise KeyError('color')"),
}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("forebay-doctor-*"))


def test_it_names_a_bottleneck_and_leaves_nothing(forebay: Command, job_words: Words, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "small.html"
    page.parent.mkdir()
    said = forebay("doctor", *job_words(), "--seconds", 4, "--json", "--out", page)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    # Steps of 16 rows: nearly all of a step does not depend on them.
    assert found["bottleneck"]["name"] in {"batch", "compute", "gather", "cores", "network"}
    assert found["sentence"].startswith("The bottleneck of the first epoch is ")
    assert set(found["step_s"]) == {"compute", "gather", "transform", "network"}
    # As many rounds as the time had room for.
    assert all(1 <= len(rounds) <= 5 for rounds in found["step_s"].values())
    assert found["job"]["rows"] == 15
    assert len(found["gains"]) == 5
    assert "<svg" in page.read_text()
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache").exists()
    assert left_in(tmp_path) == []
    assert "examination" not in said.out


def test_sigterm_leaves_nothing_and_still_ends_the_process(forebay: Command, job_words: Words, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    words = job_words(cache=tmp_path / "cache" / "blocks")
    head, _, _ = TRAINING.partition("def train(")
    loop = "    for batch in worker.loader():\n        os.kill(os.getpid(), signal.SIGTERM)"
    Path(words[0]).write_text(f"import os, signal\n{head}def train(worker, evaluate=None):\n{loop}\n{JOB}")
    ended = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))  # stands for the system's default
    try:
        said = forebay("doctor", *words, "--seconds", 60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said.code != 0
    assert ended == [signal.SIGTERM]
    assert left_in(tmp_path) == []
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("name", sorted(BAD_LOOPS))
def test_errors_of_train_functions(forebay: Command, job_words: Words, tmp_path: Path, name: str) -> None:
    loop, problem = BAD_LOOPS[name]
    words = job_words()
    head, _, _ = TRAINING.partition("def train(")
    Path(words[0]).write_text(f"{head}def train(worker, evaluate=None):\n{loop}\n{JOB}")
    said = forebay("doctor", *words, "--seconds", 60)
    assert said.code == (1 if name == "raises" else 3)
    assert problem in said.err
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["color=red"], "no parameter 'color'"),
        (["--seconds", "0.1"], "seconds=0.1 is too short"),
        (["--workers", "0"], "workers=0"),
        (["--workers", "99"], "99"),
    ],
)
def test_bad_input_is_found_before_anything_runs(
    forebay: Command, job_words: Words, more: list[str], problem: str
) -> None:
    said = forebay("doctor", *job_words(), *more)
    assert said.code == (2 if "no parameter" in said.err else 3)
    assert problem in said.err
