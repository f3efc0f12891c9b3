"""Common parts of the suites of all drivers on Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from typing import ClassVar

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group_table

from forebay.errors import Hung
from forebay.events import Event, Preparing, Warned
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.fixed_suite import HANG_GRACE_S, HANG_S, SILENT, Heard, ends_within
from forebay.testing.drivers.nodes import kill_stores
from forebay.testing.drivers.suite import DriverSuite
from forebay.training.checkpoint.memory_store_actor import stores_of
from forebay.training.job.resources import Resources
from forebay.training.runs.control import Control


class UnderRay(DriverSuite):
    """Laws of drivers on the Ray of this process. `titles` are prefixes of the process titles of a driver."""

    titles: ClassVar[tuple[str, ...]]

    def environment(self) -> Mapping[str, str]:
        return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def lose_memory(self, run: str) -> int:
        return kill_stores(run)

    def holders(self, run: str) -> Collection[str]:
        return stores_of(run)

    def leftovers(self) -> list[str]:
        # The guard of tests/ray/conftest.py looks at actors and placement groups. This one looks at processes.
        ours = psutil.Process().children(recursive=True)
        return [title for process in ours if (title := title_of(process)).startswith(self.titles)]

    def test_a_silent_rank_is_named_where_no_cpu_is_free(self, bench: DriverBench) -> None:
        """On one of three nodes, whose CPUs the workers have."""
        nodes = self.make_cluster()
        assert nodes is not None
        heard = Heard()
        with closing(nodes), ends_within(HANG_S + HANG_GRACE_S), pytest.raises(Hung, match=SILENT["hold"]):
            self.run(bench, "crowded", heard, workers=3, at_step=5, event="hold", hang_timeout_s=HANG_S)
        *_, told = [each for each in heard if isinstance(each, Warned) and each.rank is not None]
        assert told.rank == 2

    def test_stop_is_not_kept_waiting_by_workers_that_are_to_come(self, bench: DriverBench) -> None:
        def stop(event: Event, control: Control) -> None:
            if isinstance(event, Preparing):
                control.stop("there is no room")

        result = self.run(bench, "unwanted", stop, workers=4, resources=Resources(cpus=3))
        assert (result.stopped, result.epochs, result.is_finished) == ("there is no room", (), False)
        left = [facts for facts in placement_group_table().values() if "unwanted" in facts["name"]]
        assert all(facts["state"] == "REMOVED" for facts in left)


def title_of(process: psutil.Process) -> str:
    """Title of a process, without the blanks that Ray adds. Empty once it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
