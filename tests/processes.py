"""Run tests in processes that fork once all tests are collected: `pytest --processes N`.

Collecting takes 20 CPU seconds, which pytest-xdist spends in each of its processes.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest
from tests.preloaded.server import FORK_SAFE_THREADS, threads
from tests.schedule import module_of, next_module

ENDED_WELL = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
AFTER_ALL = "after all tests of process "
"""Begin of the name of a failure: a process had run all its tests, and a signal killed it in its end."""

Location = tuple[str, int | None, str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run whole modules of tests in this many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if not session.config.getoption("processes") or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors while tests were collected")
    return _Processes(session).run()


class Between(pytest.Item):
    """Item after a module, which keeps the fixtures of the session alone."""

    def runtest(self) -> None:
        """Do nothing. At the end of a process, it fails where a fixture of the session fails."""


@dataclass(frozen=True)
class _Name:
    """Name of a process in pytest's terminal, which reads `report.node.gateway.id`."""

    id: str

    @property
    def gateway(self) -> _Name:
        return self


@dataclass
class _Process:
    number: int
    pid: int
    tests: list[int] = field(default_factory=list)
    """Indices of tests that it was given and that have not ended."""
    running: tuple[str, Location] | None = None
    has_all: bool = False
    """Whether no test was left when it asked."""


class _Processes:
    """The processes of a session, seen by the one that has collected the tests."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config = session, session.config
        self._indices = {item.nodeid: index for index, item in enumerate(session.items)}
        self._modules: dict[str, list[int]] = {}
        for index, item in enumerate(session.items):
            self._modules.setdefault(module_of(item.nodeid), []).append(index)
        self._processes: dict[Connection[Any, Any], _Process] = {}
        self._count = min(self._config.getoption("processes"), len(self._modules))

    def run(self) -> bool:
        """Run all tests. Returns in each of the processes, too."""
        if lost := threads() - FORK_SAFE_THREADS:
            raise pytest.UsageError(f"a module of tests has started threads, which a fork loses: {', '.join(lost)}")
        for number in range(self._count):
            if (connection := self._fork(number)) is not None:
                return _run_tests(self._session, connection, number)
        try:
            while self._processes:
                for ready in wait(list(self._processes)):
                    assert isinstance(ready, Connection)
                    number = self._hear(ready)
                    if number is not None and (connection := self._fork(number)) is not None:
                        return _run_tests(self._session, connection, number)
        finally:  # a process ends when it next sends something
            for connection in self._processes:
                connection.close()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        return True

    def _fork(self, number: int) -> Connection[Any, Any] | None:
        """Start a process. Returns its connection there, and None here."""
        here, there = Pipe()
        for reporter in filter(None, [self._config.pluginmanager.get_plugin("terminalreporter")]):
            reporter.flush()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts native threads, too
            pid = os.fork()
        if pid == 0:
            here.close()
            for connection in self._processes:
                connection.close()
            return there
        there.close()
        self._processes[here] = _Process(number, pid)
        return None

    def _hear(self, connection: Connection[Any, Any]) -> int | None:
        """Do what a process asks for. Returns its number if it died and must be replaced."""
        process = self._processes[connection]
        try:
            word, *facts = connection.recv()
        except (EOFError, OSError):  # also within a message
            return self._ended(connection)
        if word == "next":
            process.tests = self._next_tests(process.number)
            process.has_all = not process.tests
            try:
                connection.send(process.tests)
            except OSError:  # it died since it asked
                return self._ended(connection)
        elif word == "start":
            process.running = facts[0], facts[1]
            self._config.hook.pytest_runtest_logstart(nodeid=facts[0], location=facts[1])
        elif word == "finish":
            process.running = None
            process.tests = [index for index in process.tests if index != self._indices.get(facts[0])]
            self._config.hook.pytest_runtest_logfinish(nodeid=facts[0], location=facts[1])
        elif word == "report":
            self._report(self._config.hook.pytest_report_from_serializable(config=self._config, data=facts[0]), process)
        else:
            warning, when, nodeid, location = facts
            kwargs = {"warning_message": warning, "when": when, "nodeid": nodeid, "location": location}
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=kwargs)
        return None

    def _next_tests(self, number: int) -> list[int]:
        if not self._modules or self._session.shouldfail or self._session.shouldstop:
            return []
        return self._modules.pop(next_module(self._modules, number, self._count))

    def _report(self, report: pytest.TestReport, process: _Process) -> None:
        shown = report.__dict__
        shown["node"] = _Name(f"p{process.number}")
        self._config.hook.pytest_runtest_logreport(report=report)
        del shown["node"]

    def _ended(self, connection: Connection[Any, Any]) -> int | None:
        process = self._processes.pop(connection)
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if not process.tests and process.running is None and code in ENDED_WELL:
            return None
        is_late = process.has_all and code < 0
        name = f"{AFTER_ALL if is_late else 'process '}{process.number}"
        nodeid, location = process.running or (name, ("", None, name if is_late else "between tests"))
        reason = f"The process of this test ended with {code}, " + ("a signal." if code < 0 else "its exit code.")
        self._report(pytest.TestReport(nodeid, location, {}, "failed", reason, "call"), process)
        left = [index for index in process.tests if index != self._indices.get(nodeid)]
        if left:
            self._modules[module_of(self._session.items[left[0]].nodeid)] = left
        # One that dies without a test dies again.
        return process.number if process.running and self._modules else None


def _run_tests(session: pytest.Session, connection: Connection[Any, Any], number: int) -> bool:
    """Run what `connection` gives, in a forked process of the session, which ends like any session of pytest."""
    config = session.config
    # Only the process that has collected shows and keeps what comes of tests.
    for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin", "junitxml"):
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)
    between = Between.from_parent(session, name=f"end of process {number}")
    config.pluginmanager.register(_Reporter(connection, config, between.nodeid))
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()  # it shares a file with all others
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders: Any = config.__dict__["_tmp_path_factory"]
    folders._basetemp = folders.getbasetemp() / f"p{number}"
    folders._basetemp.mkdir(mode=0o700, exist_ok=True)
    # Processes that a test spawns would import pytest, as the main module of this one.
    sys.modules["__main__"] = types.ModuleType("__main__")
    config.add_cleanup(faulthandler.enable)  # pytest's ends before the interpreter, whose end may crash in native code
    while tests := _given(connection):
        items: list[pytest.Item] = [*(session.items[index] for index in tests), between]
        for item, next_item in pairwise(items):
            config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
    config.hook.pytest_runtest_protocol(item=between, nextitem=None)
    return True


def _given(connection: Connection[Any, Any]) -> Sequence[int]:
    connection.send(("next",))
    tests: Sequence[int] = connection.recv()
    return tests


class _Reporter:
    """Plugin of a process that sends what happens to the one that shows it."""

    def __init__(self, connection: Connection[Any, Any], config: pytest.Config, between: str) -> None:
        self._connection, self._config, self._between, self._pid = connection, config, between, os.getpid()

    def _send(self, word: str, *facts: object) -> None:
        if os.getpid() != self._pid:  # a process that a test has forked, and that did not end by itself
            os._exit(1)
        try:
            self._connection.send((word, *facts))
        except OSError:
            pytest.exit("the process that collected the tests has ended")

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        self._send("start", nodeid, location)

    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> None:
        self._send("finish", nodeid, location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.nodeid != self._between:
            data: Mapping[str, object] = self._config.hook.pytest_report_to_serializable(
                config=self._config, report=report
            )
            self._send("report", data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Location | None
    ) -> None:
        text, category = str(warning_message.message), warning_message.category
        sent = warnings.WarningMessage(text, category, warning_message.filename, warning_message.lineno)
        self._send("warning", sent, when, nodeid, location)
