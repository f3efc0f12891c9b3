"""Commands in shells of their own reach a Ray that another process has started for itself, with its token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

OWNER = """
import sys
import time
import ray
from forebay.ray_cluster.actors import NAMESPACE, RUN_PREFIX
from forebay.ray_cluster.local_start import start_ray
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.runs.status import RunStatus

start_ray(1)
status = RunStatus(name="ctr", driver="ray", started_at=time.time(), node="here", path="runs/ctr", target=2,
                   min_workers=1, max_workers=4, epochs=40)
actor = ray.remote(Coordinator).options(name=f"{RUN_PREFIX}ctr", namespace=NAMESPACE, num_cpus=0).remote(status)
ray.get(actor.target.remote())
print("address", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@dataclass
class Shell:
    """A shell of the owner's user, on the machine of its Ray."""

    environment: dict[str, str]

    def forebay(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forebay", *words]
        return subprocess.run(
            command, env=self.environment | variables, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture
def shell(ray_off: None, tmp_path: Path) -> Iterator[Shell]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FOREBAY_STO"))}
    environment |= {"HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        address = next((line.split()[1] for line in owner.stdout if line.startswith("address ")), "")
        try:
            yield Shell(environment | {"RAY_ADDRESS": address})
        finally:
            owner.communicate()


def test_a_shell_of_its_own_lists_scales_and_stops(shell: Shell) -> None:
    listed = shell.forebay("jobs", "--ray", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [(run["name"], run["target"]) for run in json.loads(listed.stdout)["runs"]] == [("ctr", 2)]
    scaled, stopped = shell.forebay("scale", "ctr", "3"), shell.forebay("stop", "ctr")
    assert (scaled.returncode, scaled.stdout) == (0, "ctr: target 2 -> 3 workers; 0 train now.\n"), scaled.stderr
    assert stopped.returncode == 0, stopped.stderr
    assert "InvalidAuthToken" not in listed.stderr + scaled.stderr + stopped.stderr
    del shell.environment["RAY_ADDRESS"]
    found = shell.forebay("jobs", "--ray")
    # Another Ray may run on the machine of the tests.
    assert found.returncode == 0 or "Rays run on this machine" in found.stderr, found.stderr


@pytest.mark.variation("Ray asks for 20 s")
def test_another_user_is_told_of_the_token(shell: Shell, tmp_path: Path) -> None:
    refused = shell.forebay("jobs", "--ray", HOME=str(tmp_path / "other"))
    assert refused.returncode == 3
    assert "asks for a token" in refused.stderr and "RAY_AUTH_TOKEN_PATH" in refused.stderr
