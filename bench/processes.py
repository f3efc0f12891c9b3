"""Child processes of the benches: a module of this folder, run by any interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]


def command(module: str, *arguments: Any, python: Path | str = sys.executable) -> list[str]:
    """Command line that runs `module`. Start it with `environment()`."""
    return [str(python), "-m", module, *map(str, arguments)]


def environment(*without: str) -> dict[str, str]:
    """Variables of this process, without those that begin with one of `without`. `bench` is on the path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    inherited = variables.get("PYTHONPATH")
    return variables | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([inherited] if inherited else [])])}


@contextmanager
def child_session(line: Sequence[str], output: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Child process for the length of the block, in a session of its own. Everything it prints goes to `output`."""
    with output.open("w") as stream:
        child = subprocess.Popen(  # noqa: S603
            line, stdout=stream, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            yield child
        finally:
            # The session is the child's own, so this also ends all processes that it left behind.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def run_child(line: Sequence[str], output: Path, variables: Mapping[str, str], limit_s: float) -> str:
    """Run a child to its end, or for `limit_s` seconds. Returns how it ended."""
    with child_session(line, output, variables) as child:
        try:
            return f"ended with code {child.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            return f"did not end within {limit_s:.0f} s"


def peak_bytes() -> int:
    """Peak resident bytes of this process since its program began. Linux.

    `ru_maxrss` begins with the peak of the process that started this one: 1.1 GB where a parent had made tables.
    """
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def last_line(output: Path) -> str:
    """Last 300 characters of the last line that a child printed."""
    lines = output.read_text(errors="replace").strip().splitlines() if output.exists() else []
    return lines[-1][-300:] if lines else "none"


def answer_and_exit(path: Path, make: Callable[[], dict[str, Any]]) -> NoReturn:
    """Write what `make` returns to `path` as JSON, or `error` if it raises, and end this process at once.

    The bench ends all processes that this one has started. The answer is written by then.
    """
    try:
        answer = make()
    except Exception as error:  # noqa: BLE001 - a system that fails is reported as such, whatever it raised
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(answer))
    draft.rename(path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
