"""Run every command of README and of the site's start pages as it is written: `scripts/first_half_hour.sh`.

It starts with an empty environment, an empty folder and an empty home. The commands are taken out of the pages. Each
has a limit of CPU seconds, its processes included. S3 is moto's server, and the cluster for `ray job submit` a Ray of
this machine. `make` runs in this clone, which has an environment already.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import symtable
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
FENCE_OR_SPAN = re.compile(r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|`(?P<span>[^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(pip|python|forebay|ray|make) [^-\s]|forebay --")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.")
"""Words that a reader replaces, as in `forebay doctor JOB.py`."""
FILE = re.compile(r"# (\w+\.py)\n")
ROWS = 30_000
TIMEOUT_S = 1800.0
"""Of the wall clock, for what hangs. Eight workers that import torch on two busy cores took seven minutes."""
SHELL = ("/bin/bash", "-c")
SHELLS = ("", "bash", "console", "sh", "shell")
"""Languages of blocks with commands."""
LIMITS_S: Mapping[str, float] = {
    "pip install ": 150,
    "forebay run my_job.py ": 150,
    "forebay run ": 60,
    "ray job ": 60,
    "make ": 120,
    "python ": 60,
    "forebay doctor ": 90,
    "forebay ": 30,
}
"""CPU seconds by the begin of a command: the first one that fits. Twice what 2 cores needed, without a GPU."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, or a block of Python that is a file or a program of its own."""

    page: str
    command: str
    code: str = ""
    """Python to put into the file that `command` names last."""

    @property
    def limit_s(self) -> float:
        """CPU seconds that the command may take."""
        return next(limit for begin, limit in LIMITS_S.items() if self.command.startswith(begin))


def start_pages(root: Path = ROOT) -> list[Path]:
    """README, and the pages of the site's navigation below Start."""
    (start,) = (part["Start"] for part in tomllib.loads((root / "zensical.toml").read_text())["project"]["nav"][:1])
    names = [name for entry in start for name in entry.values()]
    return [root / "README.md" if name == "index.md" else root / "docs" / name for name in names]


def steps_of(page: str, text: str) -> Iterator[Step]:
    """Commands and programs of a page, in order.

    Left out: text with words to replace, and Python that goes on with code of the reader.
    """
    for number, found in enumerate(FENCE_OR_SPAN.finditer(text)):
        if found["language"] == "python":
            code = found["block"]
            if name := FILE.match(code):
                yield Step(page, f"python -m py_compile {name[1]}", code)
            elif not free_names(code):
                yield Step(page, f"python {Path(page).stem}_{number}.py", code)
            continue
        lines = (found["block"] or "").replace("\\\n", " ").splitlines() if found["span"] is None else [found["span"]]
        for line in (line.partition("  #")[0].rstrip() for line in lines if (found["language"] or "") in SHELLS):
            # A name in a sentence, such as `ray job submit`, is no command: it lacks its arguments.
            if COMMAND.match(line) and not PLACEHOLDER.search(line) and (found["span"] is None or line[:4] != "ray "):
                yield Step(page, line)


def free_names(code: str) -> set[str]:
    """Names that a program reads and nothing in it binds."""
    tables = [symtable.symtable(code, "page", "exec")]
    for table in tables:
        tables.extend(table.get_children())
    bound = {name.get_name() for name in tables[0].get_symbols() if name.is_assigned() or name.is_imported()}
    bound |= {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    read = {name.get_name() for name in tables[0].get_symbols()}
    read |= {name.get_name() for table in tables for name in table.get_symbols() if name.is_global()}
    return {name for name in read - bound if not hasattr(builtins, name) and not name.startswith("__")}


def main() -> None:
    """Print a line for each command. Exits with 1 if one failed or took longer than its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages instead of README and the start pages")
    parser.add_argument("--keep", type=Path, help="folder that stays, and whose environment is used again")
    given = parser.parse_args()
    pages = [page.resolve() for page in given.pages] or start_pages()
    steps = [step for page in pages for step in steps_of(str(page.relative_to(ROOT)), page.read_text())]
    # A process whose parent has ended becomes a child of this one, so that its CPU time counts.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # services end with this
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="half-hour-")))
        newcomer = Newcomer(folder.absolute(), stack)
        print(f"{'CPU s':>6}  {'limit':>5}  {'':6}  command", flush=True)
        failed = [step for step in steps if not newcomer.tries(step)]
    print(f"{len(steps) - len(failed)} of {len(steps)} commands work as written", flush=True)
    sys.exit(bool(failed))


class Newcomer:
    """Somebody with a clone, an empty environment, an empty folder, data and storage."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.work, self.clone = folder / "work", folder / "clone"
        self._log, self._service_log = folder / "output", folder / "output-of-service"
        home, environment = folder / "home", folder / "env"
        for each in (self.work, self.clone, home):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.clone)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "platform", self.clone / "platform", ignore=ignored)
        if not environment.exists():
            base = getattr(sys, "_base_executable", sys.executable)
            subprocess.run([base, "-m", "venv", str(environment)], check=True)  # noqa: S603
        port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FOREBAY_", "AWS_"))}
        self._environment = kept | {
            "HOME": str(home),
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CACHE_DIR": printed([sys.executable, "-m", "pip", "cache", "dir"], os.environ),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._stack = stack
        self._services = set[int]()
        self._serve([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
        self._write_clicks(port)

    def tries(self, step: Step) -> bool:
        """Run a step, print its line, and return whether it worked within its limit."""
        if step.code:
            (self.work / step.command.rpartition(" ")[2]).write_text(step.code)
        cwd = ROOT if step.command.startswith("make ") else self.clone if "'." in step.command else self.work
        environment = self._environment
        if step.command.startswith("ray job "):
            environment = environment | {"RAY_ADDRESS": self._cluster(), "RAY_AUTH_MODE": "token"}
        if step.command.startswith("make "):
            environment = dict(os.environ)
        before, status = cpu_s(), 0
        with self._log.open("w") as log:
            process = subprocess.Popen(  # noqa: S603 - words of a page of this repository
                # The shell stays beside its command, as at a terminal: completion asks which one it is.
                [*SHELL, f"{self._as_found(step.command)}\nexit $?"],
                cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = 124
                process.kill()
        self._end_left()
        took = cpu_s() - before
        is_fine = status == 0 and took <= step.limit_s
        word = "ok" if is_fine else f"rc {status}" if status else "slow"
        print(f"{took:6.1f}  {step.limit_s:5.0f}  {word:6}  {step.page}: {step.command}", flush=True)
        if status:
            for line in self._log.read_text().splitlines()[-15:]:
                print(f"        | {line}", flush=True)
        return is_fine

    def _as_found(self, command: str) -> str:
        """The command with the name of a dataset, which is its hash, as the output of an earlier one has it."""
        if not (named := re.search(r"clicks-[0-9a-f]{12}", command)):
            return command
        listed = printed(["forebay", "cache", "ls"], self._environment)
        found = re.search(r"clicks-[0-9a-f]{12}", listed)
        return command.replace(named[0], found[0]) if found else command

    def _write_clicks(self, port: int) -> None:
        """Write the columns that the pages name to `clicks`, to `data/clicks` and to `s3://lake/clicks`."""
        random = np.random.default_rng(0)
        table = pa.table(
            {
                "age": random.integers(18, 90, ROWS),
                "price": random.random(ROWS, dtype=np.float32),
                "country": random.choice(["de", "fr", "jp"], ROWS),
                "device": random.choice(["phone", "desk"], ROWS),
                "tags": [list(range(count)) for count in random.integers(0, 5, ROWS)],
                "clicked": random.integers(0, 2, ROWS).astype(np.int8),
            }
        )
        access = {"access_key": "key", "secret_key": "secret", "region": "us-east-1"}
        s3 = pafs.S3FileSystem(endpoint_override=f"http://127.0.0.1:{port}", allow_bucket_creation=True, **access)
        s3.create_dir("lake")
        local = pafs.LocalFileSystem()
        for system, path in ((local, f"{self.work}/clicks"), (local, f"{self.work}/data/clicks"), (s3, "lake/clicks")):
            system.create_dir(path)
            pq.write_table(table, f"{path}/part-0.parquet", filesystem=system, row_group_size=1000)

    def _cluster(self) -> str:
        """Start a Ray whose dashboard takes jobs, and return its address."""
        printed(["ray", "get-auth-token", "--generate"], self._environment)
        port, dashboard, *others = (free_port() for _ in range(6))
        names = ("ray-client-server", "node-manager", "object-manager", "dashboard-agent-listen")
        ports = [f"--{name}-port={each}" for name, each in zip(names, others, strict=True)]
        command = ["ray", "start", "--head", "--block", "--num-cpus=8", "--disable-usage-stats", f"--port={port}"]
        self._serve([*command, f"--dashboard-port={dashboard}", *ports], others[-1])
        return f"http://127.0.0.1:{dashboard}"

    def _serve(self, command: list[str], port: int) -> None:
        """Start a service that ends with this, and wait until its port answers."""
        program = shutil.which(command[0], path=self._environment["PATH"]) or command[0]
        with self._service_log.open("w") as log:
            service = subprocess.Popen([program, *command[1:]], env=self._environment, stdout=log, stderr=log)  # noqa: S603 - words of this file
        self._services.add(service.pid)
        self._stack.callback(service.wait)
        self._stack.callback(service.terminate)
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            if service.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(command)} does not answer at port {port}: {self._service_log.read_text()[-2000:]}")
            time.sleep(0.2)

    def _end_left(self) -> None:
        """End the processes that a command has left behind, and take their CPU time."""
        for patience in (100, 50):
            for _ in range(patience):
                left = children() - self._services
                for pid in left:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                if not left:
                    return
                time.sleep(0.1)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def printed(command: list[str], environment: Mapping[str, str]) -> str:
    """Standard output of a command."""
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    done = subprocess.run([program, *command[1:]], env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip()


def children() -> set[int]:
    """Process ids of the children of this process."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def cpu_s() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
