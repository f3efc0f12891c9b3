"""`ray job submit` runs a job file on a running cluster, and `forebay warm --all-nodes` fills its caches."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from forebay.cli.app import main
from forebay.testing.data.click_log import write_click_log
from forebay.training.runs.result import load_result

ROOT = Path(__file__).parents[3]
CENSUS = ROOT.parent / "shared" / "data" / "adult.data"
RAY = str(Path(sys.executable).parent / "ray")


@pytest.fixture
def dashboard(ray_off: None, tmp_path: Path) -> Iterator[str]:
    """A cluster of one node that accepts jobs, started by hand as a user would start it."""
    port, client_port = free_port(), free_port()
    start = [RAY, "start", "--head", "--block", "--num-cpus=8", "--disable-usage-stats"]
    # A folder of its own: Ray gives a job the address that the newest cluster wrote into the common one, and a test
    # beside this one may have started that. Its sockets need a short path.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with (tmp_path / "ray.log").open("w") as log:
        # Ray chooses the others. One chosen here may be taken by a process beside, before Ray takes it.
        options = [f"--temp-dir={folder}", f"--dashboard-port={port}", f"--ray-client-server-port={client_port}"]
        options += ["--port=0", "--dashboard-agent-listen-port=0"]
        head = subprocess.Popen([*start, *options], stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    until_it_answers(address)
    yield address
    # The whole group: with --block the head waits for its children, which do not wait for it. Some never end by that.
    os.killpg(head.pid, signal.SIGTERM)
    try:
        head.wait(2)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait(10)
    shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_it_answers(address: str) -> None:
    """Wait for a starting dashboard, for which each attempt of `ray job submit` would take 2 CPU seconds in vain."""
    give_up = time.monotonic() + 90
    while time.monotonic() < give_up:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=10).close()
        except urllib.error.HTTPError:
            return  # it wants a token
        except OSError:
            time.sleep(0.2)
        else:
            return


def submit(dashboard: str, entrypoint: list[str]) -> subprocess.CompletedProcess[str]:
    """Submit and wait. A head node that has just started accepts no jobs for some seconds."""
    command = [RAY, "job", "submit", "--address", dashboard, "--working-dir", ".", "--", *entrypoint]
    # Ray 2.60 turns token authentication on when it starts a cluster, and leaves it off when it submits to one.
    environment = os.environ | {"RAY_AUTH_MODE": "token"}
    give_up = time.monotonic() + 90
    while True:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        starting = "No available agent" in ended.stderr or "Failed to connect" in ended.stderr
        if not starting or time.monotonic() > give_up:
            return ended
        time.sleep(1)


def test_ray_job_submit(dashboard: str, tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "clicks", rows=2_000, files=2, row_groups_per_file=3)
    parameters = {
        "data": log.path,
        "workers": 2,
        "epochs": 1,
        "global_batch": 256,
        "buckets": 1024,
        "cache": tmp_path / "cache",
        "storage": tmp_path / "runs",
        "name": "submitted",
    }
    words = [f"{name}={value}" for name, value in parameters.items()]
    ended = submit(dashboard, [sys.executable, "-m", "forebay", "run", "jobs/train_ctr.py", *words])
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert "succeeded" in ended.stdout
    result = load_result(str(tmp_path / "runs" / "submitted"))
    assert result is not None
    assert result.is_finished
    assert 0 < result.epochs[0].rows < 2_000


@pytest.mark.variation
@pytest.mark.skipif(not CENSUS.exists(), reason="the UCI Adult data is not beside the project (../shared/data)")
def test_a_submitted_job_prepares_its_data_first(dashboard: str, tmp_path: Path) -> None:
    (tmp_path / "adult.data").write_text("".join(CENSUS.open().readlines()[:4000]))
    parameters = {
        "csv": tmp_path / "adult.data",
        "epochs": 1,
        "cache": tmp_path / "cache",
        "storage": tmp_path / "runs",
        "name": "submitted",
    }
    words = [f"{name}={value}" for name, value in parameters.items()]
    ended = submit(dashboard, [sys.executable, "-m", "forebay", "run", "jobs/prepare_and_train.py", *words])
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    # The file's sweep: its trials train on what was prepared.
    assert (tmp_path / "runs" / "submitted" / "sweep.json").is_file()
    assert len(list((tmp_path / "runs" / "prepared").glob("*/prepared.json"))) == 1


def test_warm_fills_every_node(ray_session: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_click_log(tmp_path / "clicks", rows=2_000, files=2, row_groups_per_file=3)
    words = [f"data={log.path}", f"cache={tmp_path / 'cache'}", "global_batch=256"]
    with pytest.raises(SystemExit) as ended:
        main(["warm", str(ROOT / "jobs" / "train_ctr.py"), *words, "--all-nodes", "--json"])
    assert not ended.value.code
    warmed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(warmed) == len([node for node in ray.nodes() if node["Alive"]])
    assert [each["stores"] for each in warmed.values()] == [6] * len(warmed)
