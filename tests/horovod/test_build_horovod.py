"""`make horovod`: the files that it leaves, and its behaviour when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts import build_horovod
from scripts.build_horovod import (
    build,
    cache_folder,
    has_library,
    installed,
    is_served,
    kept_wheel,
    local_version,
    only_one,
)

SCRIPT = Path(build_horovod.__file__)


def _wheel(folder: Path, *parts: str) -> Path:
    path = folder / "horovod-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for part in parts:
            wheel.writestr(part, "")
    return path


def test_what_is_installed_was_built_for_this_pytorch() -> None:
    import horovod.torch as hvd

    assert is_served(installed(), any_gpu=True)
    assert hvd.gloo_built()
    assert not hvd.mpi_built()


def test_second_time_builds_nothing() -> None:
    command = [sys.executable, SCRIPT, "--or-skip"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_build_for_gpus_stays_unless_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in build_horovod.PASSED_ON:
        monkeypatch.delenv(name, raising=False)
    plain = local_version()
    assert is_served(plain, any_gpu=False)
    assert is_served(f"{plain}.nccl", any_gpu=True)
    assert not is_served(f"{plain}.nccl", any_gpu=False)
    for other in (None, "0.28.1", f"{plain}9", f"{plain}.cu130", f"{plain}.cu130.nccl"):
        assert not is_served(other, any_gpu=True), "built for another PyTorch"


def test_wheel_only_prints_one_line_of_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build_horovod.py", "--wheel-only"])
    monkeypatch.setattr(build_horovod, "what_is_missing", str)
    monkeypatch.setattr(
        build_horovod, "_build_in", lambda scratch, _log: build_horovod.say("Building") or _wheel(scratch)
    )
    assert build_horovod.main() == 0
    said = capfd.readouterr()
    assert said.out == f"{kept_wheel(cache_folder())}\n"
    assert said.err == "Building\n"


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
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as build:
        assert build.stderr is not None
        assert b"Building Horovod" in build.stderr.readline()
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
            [sys.executable, "-c", script, lock],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=SCRIPT.parents[1],
        )
        assert other.stderr is not None
        assert "Waiting" in other.stderr.readline()
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
    assert "no C++ compiler" in refused.stderr
    assert refused.stdout == ""
    skipped = subprocess.run([*command, "--or-skip"], env=environment, capture_output=True, text=True, check=False)
    assert skipped.returncode == 0
