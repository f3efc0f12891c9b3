"""The examples of docs/own-loop.md, docs/coming-from-petastorm.md and the first one of README.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PARTS = {"a.parquet": [100, 60], "b.parquet": [40, 200]}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def own_loop(parquet_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Examples by name, beside their data and `clicks.py`."""
    parquet_folder(PARTS, folder="clicks")
    clicks, *examples = blocks("docs/own-loop.md")
    (tmp_path / "clicks.py").write_text(clicks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "clicks", raising=False)
    return dict(zip(("torchrun", "ray", "lightning", "hf"), examples, strict=True))


def test_examples_are_short(own_loop: dict[str, str]) -> None:
    assert {name: len(text.splitlines()) <= 15 for name, text in own_loop.items()} == dict.fromkeys(own_loop, True)


def test_the_trainer_trains(own_loop: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    # Its progress bar would start a thread of the process.
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    names: dict[str, Any] = {}
    exec(compile(own_loop["hf"], "hf", "exec"), names)
    assert names["loader"].epoch == 1
    names["loader"].close()


def test_one_process_of_torchrun_trains(own_loop: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    exec(compile(own_loop["torchrun"], "torchrun", "exec"), names)
    assert names["loader"].epoch == 1
    names["loader"].close()


@pytest.mark.variation("two processes")
def test_torchrun_trains(own_loop: dict[str, str], tmp_path: Path) -> None:
    launch(own_loop["torchrun"], tmp_path, "-m", "torch.distributed.run", "--nproc-per-node=2")


@pytest.mark.variation("another trainer")
def test_lightning_trains(own_loop: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    launch(own_loop["lightning"], tmp_path)


def launch(text: str, folder: Path, *options: str) -> None:
    """Run an example in a process with `options` of Python."""
    (folder / "loop.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *options, "loop.py"], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_petastorms_page_reads(parquet_folder: Callable[..., Path], tmp_path: Path) -> None:
    (example,) = blocks("docs/coming-from-petastorm.md")
    names = {"folder": str(parquet_folder(PARTS)), "rank": 0, "size": 1, "cache": str(tmp_path / "cache")}
    exec(compile(example, "petastorm", "exec"), names)
    assert names["batch"].x0.shape == (256,)  # type: ignore[attr-defined]


def test_the_first_example_of_the_readme_reads(
    parquet_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parquet_folder(PARTS, folder="clicks")
    monkeypatch.chdir(tmp_path)
    example = blocks("README.md")[0].replace('"age", "price"', '"x0", "x1"')
    assert len(example.splitlines()) == 5
    exec(compile(example, "readme", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([400, 2]) torch.Size([400])\n"
