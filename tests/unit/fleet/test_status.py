"""Health and metrics of agent and controller, as kubelet and Prometheus ask for them."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.fleet.rayjob.made import cluster

from forebay.errors import InvalidOption
from forebay.fleet.client.submission import JobFiles
from forebay.fleet.federation import controller as controllers
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.status import FLEET_METRICS, LivenessTimer, Status, StatusServer


@pytest.fixture
def status() -> Status:
    return Status(live={"loop": LivenessTimer(300)}, ready=LivenessTimer(300, is_beating=False))


@pytest.fixture
def server(status: Status) -> Iterator[StatusServer]:
    found = StatusServer(status, 0)
    found.start()
    yield found
    found.shutdown()
    found.server_close()


def ask(server: StatusServer, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{server.server_address[1]}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_probes_tell_a_hung_thread_from_a_round_that_failed(server: StatusServer, status: Status) -> None:
    assert ask(server, "/livez") == (200, "ok\n")
    assert ask(server, "/readyz")[0] == 503
    status.ready.beat()
    assert ask(server, "/readyz") == (200, "ok\n")
    status.live["loop"]._limit_s = 0
    assert ask(server, "/livez") == (503, "hung: loop\n")
    assert ask(server, "/")[0] == 404


@pytest.mark.skipif(StatusServer.address_family.name != "AF_INET6", reason="this machine has no IPv6")
def test_both_families_of_addresses_are_answered(server: StatusServer) -> None:
    assert ask(server, "/livez", "[::1]")[0] == ask(server, "/livez")[0] == 200


def test_metrics_are_read_by_prometheus(server: StatusServer, status: Status) -> None:
    status.add("capacity_writes_total")
    status.add("capacity_writes_total")
    status.set("capacity_pending_gpus", 3)
    status.replace("jobs", "state", {"queued": 2, "lost": 1})
    status.replace("jobs", "state", {"queued": 1})
    code, text = ask(server, "/metrics")
    assert code == 200
    families = list(text_string_to_metric_families(text))
    found = {each.name: (each.type, [(one.name, one.labels, one.value) for one in each.samples]) for each in families}
    assert found == {
        "forebay_capacity_writes": ("counter", [("forebay_capacity_writes_total", {}, 2.0)]),
        "forebay_capacity_pending_gpus": ("gauge", [("forebay_capacity_pending_gpus", {}, 3.0)]),
        "forebay_jobs": ("gauge", [("forebay_jobs", {"state": "queued"}, 1.0)]),
    }
    assert all((kind == "counter") == name.endswith("_total") for name, (kind, _) in FLEET_METRICS.items())


def test_a_port_that_is_taken_is_said(server: StatusServer, status: Status) -> None:
    with pytest.raises(InvalidOption, match="--status-port .* cannot be used"):
        StatusServer(status, server.server_address[1])


def fleet() -> Fleet:
    return Fleet(cluster=(cluster(context="nobody"),))


def test_a_controller_that_hangs_in_storage_is_not_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "STALLED_S", 0.5)
    submissions = tmp_path / "ctr" / "submissions"
    found: Queue[FleetController] = Queue()
    answers = threading.Event()

    def follow() -> None:
        controller = FleetController(fleet(), [str(tmp_path)], JobJournal(":memory:"))
        controller.step()
        submissions.mkdir(parents=True)
        (submissions / "000001.json").write_text("")
        # As on a share whose server is away.
        monkeypatch.setattr(JobFiles, "newest_stored", lambda _: answers.wait(60) and None)
        found.put(controller)
        controller.step()

    thread = threading.Thread(target=follow)
    thread.start()
    controller = found.get(timeout=30)
    try:
        end = time.monotonic() + 30
        while controller.status.hung() != ["rounds"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert thread.is_alive() and controller.status.metrics["controller_rounds_total", ""] == 1
    finally:
        answers.set()
        thread.join(30)


def test_a_storage_without_an_answer_fails_rounds_and_hangs_nothing(tmp_path: Path) -> None:
    storage = tmp_path / "file"
    storage.write_text("no folder")
    found = FleetController(fleet(), [str(storage)], JobJournal(":memory:"))
    with pytest.raises(OSError, match="Not a directory"):
        found.step()
    assert found.status.hung() == [] and not found.status.ready.is_fresh
    assert found.status.metrics["controller_failed_rounds_total", ""] == 1
    assert found.status.metrics["controller_round_timestamp_seconds", ""] == 0
    found = FleetController(fleet(), [str(storage), str(tmp_path)], JobJournal(":memory:"))
    with pytest.raises(OSError, match="Not a directory"):
        found.step()
    assert found.status.ready.is_fresh, "the jobs of the other storage had their round"
