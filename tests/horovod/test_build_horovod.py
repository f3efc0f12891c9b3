"""`make horovod`: what it leaves behind, and what it does when it is cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import build_horovod
from scripts.build_horovod import build, cache_folder, has_library, installed, kept_wheel, local_version, only_one

SCRIPT = Path(build_horovod.__file__)


def _wheel(folder: Path, *parts: str) -> Path:
    path = folder / "horovod-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for part in parts:
            wheel.writestr(part, "")
    return path


def test_what_is_installed_was_built_for_this_pytorch() -> None:
    import horovod.torch as hvd

    assert installed() == local_version()
    assert hvd.gloo_built()
    assert not hvd.mpi_built()


def test_second_time_builds_nothing() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_kept_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert folder.is_relative_to(tmp_path)
    assert kept_wheel(folder) is None
    folder.mkdir(parents=True)
    wheel = _wheel(folder)
    assert build() == kept_wheel(folder) == wheel


def test_wheel_without_the_library_is_no_wheel(tmp_path: Path) -> None:
    assert has_library(_wheel(tmp_path, "horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"))
    assert not has_library(_wheel(tmp_path, "horovod/torch/__init__.py", "build/horovod/torch/mpi_lib_v2.so"))


def test_build_that_is_cut_off_leaves_no_wheel(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, SCRIPT, "--wheel-only"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as build:
        assert build.stdout is not None
        assert b"Building Horovod" in build.stdout.readline()
        os.killpg(build.pid, signal.SIGKILL)
    assert list(tmp_path.rglob("building-*")), "it had begun"
    assert list(tmp_path.rglob("*.whl")) == []


def test_one_build_at_a_time(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from scripts.build_horovod import only_one\n"
        "with only_one(Path(sys.argv[1])): print('in', flush=True)"
    )
    lock = tmp_path / "lock"
    with only_one(lock):
        other = subprocess.Popen(
            [sys.executable, "-c", script, lock], stdout=subprocess.PIPE, text=True, cwd=SCRIPT.parents[1]
        )
        assert other.stdout is not None
        assert "Waiting" in other.stdout.readline()
    assert other.communicate()[0] == "in\n"


def test_compiler_is_asked_for_cpp20(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "echo")
    wrapper = build_horovod._wrapped_compiler(tmp_path)
    command = [wrapper, "-std=gnu++14", "-g", "-std=c++17", "a b.cc"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "-std=c++20 -std=c++17 a b.cc\n"


def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("CXX", None)
    command = [sys.executable, SCRIPT, "--wheel-only"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no C++ compiler" in refused.stdout
    skipped = subprocess.run([*command, "--or-skip"], env=environment, capture_output=True, text=True, check=False)
    assert skipped.returncode == 0
