"""Processes that are forked for Ray: they start, end and are killed as if they were its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from tests.preloaded.workers import PreloadedPython
from tests.waiting import until

WAIT_S = 60.0


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """A Python that forks the scripts of Ray, from a server that has imported nothing."""
    preloaded = PreloadedPython([])
    yield str(preloaded.executable)
    preloaded.end()


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """Script that is forked. It says what it finds, and sleeps or ends as it is told."""
    return script_at(tmp_path / "_private/workers/default_worker.py")


def script_at(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    lines = (
        *("import os, sys, time", "print(os.getpid(), os.getcwd(), os.environ['COLOR'], sys.argv[1:], flush=True)"),
        *("if sys.argv[1] == 'end': sys.exit(int(sys.argv[2]))", "time.sleep(600)"),
    )
    path.write_text("\n".join(lines))
    return path


def test_folder_variables_words_and_code_are_those_of_a_process(python: str, worker: Path, tmp_path: Path) -> None:
    for command in ([worker], ["-c", worker.read_text()]):
        words = [python, "-u", *map(str, command), "end", "7"]
        ended = subprocess.run(
            words,
            cwd=tmp_path,
            env=os.environ | {"COLOR": "red"},
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        assert ended.returncode == 7, ended.stderr
        assert ended.stdout.split(maxsplit=1)[1].startswith(f"{tmp_path} red "), ended.stdout


@pytest.mark.parametrize("killed", ["stand-in", "process"])
def test_neither_outlives_the_other(python: str, worker: Path, killed: str) -> None:
    words = [python, str(worker), "sleep"]
    with subprocess.Popen(words, env=os.environ | {"COLOR": ""}, stdout=subprocess.PIPE, text=True) as stand_in:
        assert stand_in.stdout is not None
        process = int(stand_in.stdout.readline().split()[0])
        assert process != stand_in.pid
        os.kill(stand_in.pid if killed == "stand-in" else process, signal.SIGKILL)
        assert stand_in.wait(WAIT_S) == -signal.SIGKILL
        until(lambda: not Path(f"/proc/{process}").exists())


def test_server_lives_on_where_both_end_at_once(python: str, tmp_path: Path) -> None:
    script = tmp_path / "_private/workers/default_worker.py"
    script.parent.mkdir(parents=True)
    script.write_text("import os, sys\nsys.stdin.readline()\nos.kill(int(sys.argv[1]), 9)\nos._exit(0)")
    for _ in range(20):
        # `exec` leaves the stand-in the number of the shell, which it then has as its argument.
        words = ["sh", "-c", f'exec {python} {script} "$$"']
        stand_ins = [subprocess.Popen(words, stdin=subprocess.PIPE) for _ in range(4)]
        for each in stand_ins:
            each.communicate(b"\n")
    ended = subprocess.run([python, "-c", "import os; print(os.getppid())"], capture_output=True, text=True, check=True)
    assert int(ended.stdout) != os.getpid(), "the server had ended"


def test_without_the_server_python_itself_runs(tmp_path: Path) -> None:
    preloaded = PreloadedPython([])
    python = tmp_path / "python"
    python.write_text(preloaded.executable.read_text())
    python.chmod(0o700)
    preloaded.end()
    ended = subprocess.run([python, "-c", "import forebay; print(1)"], capture_output=True, text=True, check=True)
    assert ended.stdout == "1\n"


def test_agent_ends_with_the_raylet(python: str, tmp_path: Path) -> None:
    agent = script_at(tmp_path / "dashboard/agent.py")
    words = ["sh", "-c", f"{python} {agent} sleep & read line"]
    with subprocess.Popen(words, env=os.environ | {"COLOR": ""}, stdin=-1, stdout=-1, text=True) as raylet:
        assert raylet.stdout is not None
        process = int(raylet.stdout.readline().split()[0])
        raylet.kill()
        until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.usefixtures("ray_session")
def test_actor_has_what_was_imported_before() -> None:
    if "FOREBAY_PRELOAD" not in os.environ:
        pytest.skip("Ray starts its processes itself: FOREBAY_PRELOAD is not set")

    @ray.remote(num_cpus=0)
    class LoadedModules:
        def modules(self) -> list[str]:
            return list(sys.modules)

    actor = LoadedModules.remote()
    assert {"torch", "pyarrow.parquet"} <= set(ray.get(actor.modules.remote()))
    ray.kill(actor)
