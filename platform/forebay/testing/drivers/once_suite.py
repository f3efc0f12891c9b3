"""Laws of a run that is started twice.

It trains once, and an attempt that was taken over saves nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from forebay.events import Event, Preparing
from forebay.storage.filesystem import below, resolve
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.process import FENCED_CODE, DriverProcess
from forebay.training.driver.driver import Driver
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.control import Control
from forebay.training.runs.result import load_result

ASK_S = 0.2
TAKEOVER_S = 2.0
STEP_S = 0.05
GONE_S = 1.0
REMOVALS = 9


class OnceSuite:
    """Laws of every driver for two starts of one name.

    The starts are in two processes. Override `make_driver` and `driver_path`.

    `environment` has variables for the other process, and `options` are of its job, such as another storage.
    """

    driver_path: ClassVar[str] = ""
    """`module:Class` of the driver."""

    def make_driver(self) -> Driver:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables for a driver in a process of its own."""
        return {}

    def options(self) -> Mapping[str, Any]:
        """Options of all jobs."""
        return {}

    @pytest.fixture
    def once_bench(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> DriverBench:
        monkeypatch.setattr(fence, "ASK_S", ASK_S)
        return DriverBench(tmp_path_factory.mktemp("once"))

    def test_stopped_attempt_is_taken_over_and_ends_itself(self, once_bench: DriverBench) -> None:
        """A suspended process wakes after the run has finished.

        It is stopped for longer than `takeover_s`.
        """
        bench, common = once_bench, {"epochs": 3, "storage_every_s": 0.1, "checkpoint_every": 1, **self.options()}
        first = self._other(bench, "silent", common | {"step_s": 4 * STEP_S})
        try:
            first.wait_for(step=5)
            first.suspend()
            said: list[str] = []

            def hear(event: Event, _control: Control) -> None:
                if isinstance(event, Preparing):
                    said.append(event.what)

            job = bench.job("silent", **common)
            follow = StartPolicy(follow=True, takeover_s=TAKEOVER_S)
            result = self.make_driver().run(replace(job, start=follow), [hear])
            first.resume()
            assert first.exit_code() == FENCED_CODE, first.output[-2000:]
        finally:
            first.kill()
        assert said[0].startswith("following attempt 1 (process ")
        assert result.is_finished
        assert load_result(result.path) == result, "the attempt that was taken over wrote a result"
        assert number_of_attempts(result.path) == 2
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result)

    def test_two_starts_at_once_train_once(self, once_bench: DriverBench) -> None:
        bench, common = once_bench, {"step_s": STEP_S, **self.options()}
        other = self._other(bench, "twice", common | {"start": {"follow": True}})
        try:
            job = replace(bench.job("twice", **common), start=StartPolicy(follow=True))
            result = self.make_driver().run(job)
            assert other.exit_code() == 0, other.output[-2000:]
        finally:
            other.kill()
        assert result.is_finished
        assert number_of_attempts(result.path) == 1, "both of them trained"
        assert bench.steps_redone("twice") == 0
        bench.assert_every_row_once(result)

    def test_removed_folder_is_trained_by_one(self, once_bench: DriverBench) -> None:
        """A second start finds no folder, and makes it again.

        The first one ends, and keeps nothing in it.
        """
        bench, common = once_bench, {"storage_every_s": 0.1, "checkpoint_every": 1, **self.options()}
        first = self._other(bench, "removed", common | {"step_s": 8 * STEP_S})
        try:
            first.wait_for(step=3)
            job = bench.job("removed", step_s=STEP_S, **common)
            remove(below(resolve(job.storage).uri, "removed"))
            result = self.make_driver().run(job)
            assert first.exit_code() == FENCED_CODE, first.output[-2000:]
        finally:
            first.kill()
        assert result.is_finished
        assert load_result(result.path) == result, "the attempt whose folder was removed wrote a result"
        assert number_of_attempts(result.path) == 1

    def test_removed_folder_ends_the_run(self, once_bench: DriverBench) -> None:
        """Nothing makes it again, and it stays away."""
        bench, common = once_bench, {"checkpoint_every": 1, "storage_every_s": 0.1, **self.options()}
        first = self._other(bench, "gone", common | {"step_s": 4 * STEP_S, "epochs": 20, "gone_s": GONE_S})
        try:
            first.wait_for(step=3)
            run = below(resolve(bench.job("gone", **common).storage).uri, "gone")
            remove(run)
            assert first.exit_code() != 0, first.output[-2000:]
            assert "is not there: the folder of the run was removed" in first.output
        finally:
            first.kill()
        assert AttemptFiles(run).newest() is None

    def _other(self, bench: DriverBench, name: str, options: Mapping[str, Any]) -> DriverProcess:
        return DriverProcess(self.driver_path, bench, name, self.environment(), ask_s=ASK_S, **options)


def remove(run: str) -> None:
    """Remove the folder of a run that writes into it meanwhile."""
    folder = resolve(run)
    for _ in range(REMOVALS):
        with suppress(OSError):
            folder.fs.delete_dir(folder.path)
            break


def number_of_attempts(run: str) -> int:
    """Number of the newest attempt in folder `run`."""
    newest = AttemptFiles(run).newest()
    return 0 if newest is None else newest.number
