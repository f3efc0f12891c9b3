"""Controllers as processes of their own.

One is the command, and one ends itself by SIGKILL at one of its effects.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from kubernetes import config

from forebay.cli.fleet.chart import controller as run_controller
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.federation import controller as rounds
from forebay.fleet.federation.run_storage import RunStorage
from forebay.fleet.kube.api import KubeApi
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.training.runs.attempts.files import AttemptFiles

Side = Literal["before", "after"]
STOP_S = 0.5
"""Time after which an order to stop counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFiles:
    """Files of a controller.

    `trace` gets a line before each of its effects.
    """

    fleet: str
    storage: str
    journal: str
    trace: str
    output: str
    kubeconfig: str


@dataclass(frozen=True, slots=True, order=True)
class Crash:
    """Effect before or after which a controller ends."""

    effect: str
    side: Side


class _Effects:
    """Effects of this process.

    They are requests that change something, and writes to storage and to the journal.
    """

    def __init__(self, trace: str, crashes: frozenset[Crash]) -> None:
        self._trace, self._crashes = trace, crashes

    def hook(self, owner: type, name: str, describe: Callable[..., str | None]) -> None:
        """Note calls of a method, and end at a crash.

        Calls count for which `describe` returns a text.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **options: Any) -> Any:
            text = describe(*args)
            if text is None:
                return original(*args, **options)
            self._end_at(Crash(text, "before"))
            result = original(*args, **options)
            self._note(text)
            self._end_at(Crash(text, "after"))
            return result

        setattr(owner, name, wrapped)

    def _end_at(self, here: Crash) -> None:
        if here in self._crashes:
            self._note(f"killed {here.side} {here.effect}")
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, text: str) -> None:
        with Path(self._trace).open("a", encoding="utf-8") as trace:
            trace.write(f"{text}\n")


def _run(files: ControllerFiles, crashes: frozenset[Crash]) -> None:
    """Run `forebay fleet controller` with quick rounds.

    It ends itself at the first of `crashes` that it comes to.
    """
    # The package reads the variable when it is imported, which was before the fork.
    config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION = files.kubeconfig
    output = os.open(files.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    rounds.ROUND_S, rounds.POLL_S = 0.5, 0.5
    vars(rounds)["RunStorage"] = functools.partial(RunStorage, stop_s=STOP_S)
    effects = _Effects(files.trace, crashes)
    effects.hook(AttemptFiles, "create", lambda self, claim: f"claim {self.run.name} {claim.number}")
    effects.hook(AttemptFiles, "end", lambda self, number, end: f"record {end.how} of {self.run.name} {number}")
    effects.hook(KubeApi, "create", lambda _, __, body: f"create {_name(body['metadata']['labels'])}")
    effects.hook(KubeApi, "delete", lambda _, path: f"delete {re.sub('-[0-9a-f]{6}-', ' ', path.rpartition('/')[2])}")
    effects.hook(JobFiles, "start", lambda self, number: f"started {self.name}")
    effects.hook(JobFiles, "end", lambda self, number, end: f"{end.how} {self.name}")
    effects.hook(JobJournal, "record", lambda _, name, state, *__: f"journal {name} {type(state).__name__}")
    effects.hook(JobJournal, "add", _describe_added)
    run_controller(fleet=files.fleet, storage=[files.storage], journal=files.journal)


def _name(labels: dict[str, str]) -> str:
    return " ".join(labels[f"forebay.dev/{each}"] for each in ("job", "task", "attempt"))


def _describe_added(journal: JobJournal, spec: Any, _: float) -> str | None:
    is_known = journal.entry(spec.run_name(spec.task[0])) is not None
    return None if is_known else f"journal {spec.name} is added"


_processes = multiprocessing.get_context("forkserver")
# They take two seconds to import, and a test starts a hundred controllers.
_processes.set_forkserver_preload([__name__, "kubernetes.client"])


def start(files: ControllerFiles, crashes: frozenset[Crash] = frozenset()) -> BaseProcess:
    """Start a controller process with quick rounds.

    It ends itself at the first of `crashes`.
    """
    process = _processes.Process(target=_run, args=(files, crashes), daemon=True)
    process.start()
    return process


@contextmanager
def command(files: ControllerFiles) -> Iterator[subprocess.Popen[bytes]]:
    """`forebay fleet controller`, as a user starts it.

    Ended by SIGKILL if it runs.
    """
    words = ["fleet", "controller", "--fleet", files.fleet, "--storage", files.storage, "--journal", files.journal]
    with Path(files.output).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", *words],
            env={**os.environ, "KUBECONFIG": files.kubeconfig},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
