"""Laws of `Driver` as tests.

The author of a driver subclasses `DriverSuite` and runs it with pytest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import ClassVar, Protocol

import pytest

from forebay.errors import InvalidOption
from forebay.events import Failed, Preempted, Resized, Started
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.testing.drivers.fixed_suite import WORKERS, FixedSuite, in_each_order
from forebay.testing.drivers.fixed_suite import Heard as Heard
from forebay.testing.drivers.fixed_suite import assert_same_model as assert_same_model
from forebay.testing.drivers.process import DriverProcess
from forebay.testing.drivers.script import OVER, Cue, Script, resize
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control
from forebay.training.runs.result import Result

STEP_S = 0.05
TAKE_OVER_S = 60.0


class Nodes(Protocol):
    """Machines, some of which can be removed during a run.

    See `forebay.testing.drivers.nodes`.
    """

    @property
    def others(self) -> list[str]:
        """Ids of the nodes without the driver.

        As in `World.node`. One worker fits on each.
        """
        ...

    def add(self) -> str: ...

    def kill(self, node_id: str) -> None: ...

    def announce_drain(self, node_id: str, deadline_s: float) -> None: ...

    def close(self) -> None: ...


class DriverSuite(FixedSuite):
    """Laws of every driver, for a changing number of workers.

    `FixedSuite` has the laws for a fixed number.

    Override `make_driver`, `leftovers` and `lose_memory`. `driver_path` and `environment` are for a driver in another
    process that must reach the same cluster. Override `make_cluster` if nodes can be lost. Every run here saves each
    step. After it the model counts the rows that shaped it, and the bench's log has the repeated steps.

    ```python
    class TestLocal(DriverSuite):
        driver_path = "forebay.training.driver.local.driver:LocalDriver"

        def make_driver(self) -> Driver:
            return LocalDriver()

        def leftovers(self) -> list[str]:
            return [each for each in processes() if f"fork_server of {os.getpid()}" in each]

        def lose_memory(self, run: str) -> int:
            return 0  # it keeps checkpoints on disk
    ```
    """

    driver_path: ClassVar[str] = ""
    """`module:Class` of the driver, for a process of its own."""

    def environment(self) -> Mapping[str, str]:
        """Variables for a driver in a process of its own."""
        return {}

    def lose_memory(self, run: str) -> int:
        """End all processes with checkpoints of a run in memory.

        Returns their number, 0 if a driver has none.
        """
        raise NotImplementedError

    def holders(self, run: str) -> Collection[str]:  # noqa: ARG002 - for those who have some
        """Ids of nodes with checkpoints of a run in memory."""
        return ()

    def make_cluster(self) -> Nodes | None:
        """Make the driver's node and two of one worker each.

        None if a driver has no nodes.
        """
        return None

    def follow(
        self, bench: DriverBench, name: str, elastic: Elastic, cues: Sequence[Cue], **options: object
    ) -> tuple[Result, Heard]:
        """Run a job through `cues`, and check the common laws."""
        heard, script = Heard(), Script(cues)
        defaults = {"workers": 1, "elastic": elastic, "epochs": MOST_EPOCHS, "checkpoint_every": 1, "step_s": STEP_S}
        result = self.run(bench, name, heard, script, **(defaults | options))
        assert script.is_over, f"the run ended after {script.done} of {len(cues)} cues"
        assert result.stopped == OVER
        sizes = {event.world_size for event in heard if isinstance(event, Started)}
        assert sizes <= set(range(elastic.min_workers, elastic.max_workers + 1))
        assert {each.size for each in bench.attempts(name)} <= sizes, "a size without an event"
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result)
        return result, heard

    def take_over(self, bench: DriverBench, name: str, **options: object) -> Result:
        """Run a job whose driver was killed."""
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                return self.run(bench, name, **options)
            except InvalidOption as refusal:
                if "under way" not in str(refusal) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)  # Its workers take a moment to notice.

    @in_each_order
    def test_grows_and_shrinks_as_asked(self, bench: DriverBench) -> None:
        cues = [
            Cue(workers=1, act=resize(3)),
            Cue(workers=3, act=resize(1)),
            Cue(workers=1, act=resize(2)),
            Cue(workers=2, act=no_act),
        ]
        elastic = Elastic(min_workers=1, max_workers=3, start=1)
        result, heard = self.follow(bench, "resized", elastic, cues)
        assert changes(heard) == [(1, 3), (3, 1), (1, 2)]
        assert result.failures == 0
        assert bench.steps_redone("resized") == 0

    def test_changes_of_mind_come_to_the_last_one(self, bench: DriverBench) -> None:
        """Make quick, nested and out-of-bounds changes.

        Two changes within one second, changes during a change, and numbers that are out of bounds.
        """
        cues = [
            Cue(workers=1, act=resize(3, 2)),
            Cue(workers=2, act=resize(3)),
            Cue(when="at once", act=resize(1)),
            Cue(workers=1, act=resize(16)),
            Cue(when="changing", act=resize(2)),
            Cue(workers=2, act=resize(0)),
            Cue(workers=1, act=no_act),
        ]
        result, heard = self.follow(bench, "undecided", Elastic(min_workers=1, max_workers=3, start=1), cues)
        assert changes(heard)[-1][1] == 1
        assert result.failures == 0
        assert bench.steps_redone("undecided") == 0

    def test_killed_workers_are_replaced_one_or_all(self, bench: DriverBench) -> None:
        def kill(*ranks: int) -> Cue:
            return Cue(workers=2, act=lambda _: kill_members(bench, "killed-often", ranks), loses_workers=True)

        elastic = Elastic(min_workers=1, max_workers=2)
        cues = [kill(0), kill(0, 1), Cue(workers=2, act=no_act)]
        result, heard = self.follow(bench, "killed-often", elastic, cues, max_failures=6)
        failed = [event for event in heard if isinstance(event, Failed)]
        assert all(event.will_retry for event in failed)
        # Two workers that are killed at once may be noticed one after the other.
        assert 2 <= result.failures == len(failed) <= 3
        assert bench.steps_redone("killed-often") <= 2

    def test_all_that_holds_memory_is_killed_and_storage_is_what_remains(self, bench: DriverBench) -> None:
        """Kill workers and memory stores while storage lags behind.

        The first checkpoint is in storage at once, the next one not before the end of the run.
        """
        made, lost = list[int](), list[int]()

        def kill_all(_control: Control) -> None:
            kill_members(bench, "emptied", range(WORKERS))
            made.append(len(bench.attempts("emptied")))
            # After the workers: they would start another store.
            lost.append(self.lose_memory("emptied"))

        def is_ahead_of_storage() -> bool:
            stored = DirectoryStore(f"{bench.folder}/runs/emptied/checkpoints").newest()
            # Until a store has started, checkpoints go directly to storage.
            held = bool(self.holders("emptied"))
            return stored is not None and (not held or bench.attempts("emptied")[-1].step >= stored.step + 3)

        wait = Cue(workers=WORKERS, act=no_act)
        kill = Cue(workers=WORKERS, act=kill_all, only_if=is_ahead_of_storage, loses_workers=True)
        cues = [wait, wait, wait, kill, wait]
        options = {"storage_every_s": 3600.0, "max_failures": 3}
        result, _ = self.follow(bench, "emptied", Elastic(min_workers=1, max_workers=WORKERS), cues, **options)
        assert 1 <= result.failures <= WORKERS, "workers killed at once may be noticed one after the other"
        assert bench.attempts("emptied")[made[0]].step >= 1, "the checkpoint in storage was not found"
        if lost[0]:
            assert bench.steps_redone("emptied") >= 2, "a checkpoint in memory outlived it"

    @in_each_order
    def test_killed_driver_is_taken_over_from_storage(self, bench: DriverBench) -> None:
        """All memory is lost with the driver."""
        options = {"workers": WORKERS, "epochs": 8, "checkpoint_every": 1, "step_s": STEP_S, "storage_every_s": 0.2}
        slow = options | {"step_s": 4 * STEP_S, "at_step": 13, "event": "hang"}  # it can still be killed there
        DriverProcess(self.driver_path, bench, "orphaned", self.environment(), **slow).kill_at(12)
        result = self.take_over(bench, "orphaned", **(options | {"step_s": 0.0}))
        assert result.is_finished
        assert [epoch.epoch for epoch in result.epochs] == list(range(8))
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result)
        assert len({each.pid for each in bench.attempts("orphaned")}) >= 2 * WORKERS, "nothing was taken over"

    def test_nodes_are_left_before_they_go_and_may_be_lost(self, bench: DriverBench) -> None:
        """Drain a node, kill both nodes, then add one.

        The target cannot be met before one is added.
        """
        nodes = self.make_cluster()
        if nodes is None:
            pytest.skip("this driver has no nodes to lose")
        with closing(nodes):
            draining, dying = nodes.others

            def is_left() -> bool:
                """Whether the draining node has no checkpoint left.

                Before, it may have the only copy of the one on the dying node.
                """
                return draining not in self.holders("moved")

            def take_away(_control: Control) -> None:
                nodes.kill(draining)
                nodes.kill(dying)

            cues = [
                Cue(workers=3, act=lambda _: nodes.announce_drain(draining, time.time() + TAKE_OVER_S)),
                Cue(workers=2, act=take_away, only_if=is_left, loses_workers=True),
                Cue(workers=1, act=lambda _: nodes.add()),
                Cue(workers=2, act=no_act),
            ]
            result, heard = self.follow(bench, "moved", Elastic(min_workers=1, max_workers=3), cues)
        told = [(event.node, event.workers) for event in heard if isinstance(event, Preempted)]
        assert told == [(draining, 1)]
        assert result.failures == 1, "a planned change counted as a failure, or a lost node did not"
        assert bench.steps_redone("moved") <= 2, "the copy of the newest checkpoint may have been in progress"


def no_act(_control: Control) -> None:
    """Do nothing.

    At the script's end it is enough that the cue was reached.
    """


def changes(heard: Heard) -> list[tuple[int, int]]:
    """Old and new size of every planned change."""
    return [(event.old, event.new) for event in heard if isinstance(event, Resized)]


def kill_members(bench: DriverBench, name: str, ranks: Sequence[int]) -> None:
    """Kill workers of a run (SIGKILL), whatever they are doing."""
    members = bench.members(name)
    for rank in ranks:
        os.kill(members[rank].pid, signal.SIGKILL)
