"""A run under Ray, listed, scaled and stopped by the command from other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from forebay.events import Event, Reported, Resized, Started
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.fixed_suite import Heard
from forebay.training.driver.driver import run
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Control


@pytest.mark.variation  # test_another_shell.py has the commands, test_event_loop.py what a run follows
def test_run_is_seen_scaled_and_stopped_from_another_process(ray_session: None, tmp_path: Path) -> None:
    bench = DriverBench(tmp_path)
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    heard, asked = Heard(), list[str]()

    def forebay(*words: str) -> str:
        command = [sys.executable, "-m", "forebay", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def steer(event: Event, control: Control) -> None:
        heard.append(event)
        if isinstance(event, Reported) and event.step >= 3 and not asked:
            asked.append(forebay("jobs", "--ray", "--json"))
            forebay("scale", "remote", "2")
        if isinstance(event, Started) and event.world_size == 2:
            asked.append(forebay("stop", "remote", "--reason", "from afar"))

    job = bench.job(
        "remote", elastic=Elastic(min_workers=1, max_workers=2, start=1), epochs=200, checkpoint_every=1, step_s=0.05
    )
    result = run(job, "ray", [steer])
    seen = json.loads(asked[0])["runs"][0]
    assert (seen["name"], seen["state"], seen["world_size"], seen["target"]) == ("remote", "training", 1, 1)
    assert seen["step"] >= 3
    assert [(event.old, event.new) for event in heard if isinstance(event, Resized)] == [(1, 2)]
    assert result.stopped == "from afar"
    bench.assert_every_row_once(result)
