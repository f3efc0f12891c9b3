"""`forebay fleet clusters`, and what a job lacks there.

The API server is local and speaks HTTP.
"""

from __future__ import annotations

import datetime
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.fleet.spec.test_job_toml import JOB as WRONG_JOB
from tests.unit.fleet.spec.test_job_toml import WRONG

from forebay.cli.fleet.submit import submit
from forebay.errors import InvalidJobSpec
from forebay.fleet.placement.capacity import Capacity, NodeGroup, Shape

pytest.importorskip("kubernetes")
Call = Callable[..., Any]
GIB = 1 << 30
FLEET = """
[[cluster]]
name = "east"
context = "east"
namespace = "ml"
image = "registry.example/forebay@sha256:00"
[cluster.sku.h100]
cpu = 64
memory = "512Gi"
gpus = 8
price_per_hour = 30
[[cluster]]
name = "lost"
context = "lost"
image = "registry.example/forebay@sha256:00"
[cluster.sku.h100]
cpu = 64
memory = "512Gi"
gpus = 8
"""
JOB = """
name = "ctr"
storage = "STORAGE"
[[task]]
command = ["true"]
workers = {min = 3, cpu = 64, memory = "512Gi", gpus = 8}
[scheduling]
clusters = ["east"]
"""
NODES = (
    NodeGroup(Shape(64_000, 512 * GIB, 8), ("h100/on-demand",), 1),
    NodeGroup(Shape(32_000, 256 * GIB, 3), ("h100/on-demand",), 1),
    NodeGroup(Shape(8000, 64 * GIB), ("head",)),
)
RAY = "/apis/ray.io/v1/namespaces/ml/rayjobs"
CORE = "/api/v1/namespaces/ml"


def figures() -> dict[str, Any]:
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=20)
    data = {"beat": "7", "capacity.json": Capacity(cluster="x", observed_at=0.0, nodes=NODES).to_json()}
    return {"metadata": {"managedFields": [{"time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}]}, "data": data}


class EastServer(http.server.BaseHTTPRequestHandler):
    """Answers by path. Other objects are missing."""

    found: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append((path, self.headers.get("Accept")))
        body = self.found.get(path)
        missing = {"kind": "Status", "code": 404, "message": "not found"}
        text = json.dumps(missing if body is None else body).encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    job = {"metadata": {"name": "fb-1"}, "status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}}
    EastServer.asked, EastServer.found = (
        [],
        {
            RAY: {"metadata": {}, "items": [job]},
            f"{CORE}/pods": {"metadata": {}, "items": []},
            f"{CORE}/configmaps/forebay-capacity": figures(),
            "/version": {},
        },
    )
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EastServer)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    ports = {"east": httpd.server_address[1], "lost": 1}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": n, "cluster": {"server": f"http://127.0.0.1:{port}"}} for n, port in ports.items()],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in ports],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    # The package reads KUBECONFIG when it is imported.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    (tmp_path / "fleet.toml").write_text(FLEET)
    yield tmp_path / "fleet.toml"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_clusters_are_listed_with_their_room(forebay: Call, fleet: Path) -> None:
    said = forebay("fleet", "clusters", "--fleet", fleet)
    assert said.code == 0, said.err
    (row,) = (line.split() for line in said.out.splitlines() if "on-demand" in line)
    age = int(row.pop(6))
    assert row == ["east", "h100", "on-demand", "2", "11", "16", "s", "30.00", "1+0"]
    assert 19 <= age <= 60
    assert "lost: cluster lost gave no answer" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    east, lost = json.loads(forebay("fleet", "clusters", "--fleet", fleet, "--json").out)["clusters"]
    assert (east["pools"][0]["free"], east["running"], lost["pools"]) == (11, 1, [])


def test_a_job_that_no_cluster_could_start_is_refused_at_submit(forebay: Call, fleet: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace("STORAGE", str(tmp_path / "runs")))
    said = forebay("submit", file, "--backend", "fleet", "--fleet", fleet)
    assert said.code == 2
    assert "3 workers are more than any cluster holds when it is empty: east h100 on-demand holds 2" in " ".join(
        said.err.split()
    )
    shown = " ".join(forebay("fleet", "explain", file, "--fleet", fleet, "--live").out.split())
    assert "3 workers are more than any cluster holds when it is empty" in shown
    wants = JOB.replace("STORAGE", str(tmp_path / "runs")).replace("min = 3", "min = 1")
    file.write_text(
        wants + '[launch]\nsecret_env = {HF_TOKEN = "hf/token"}\nmounts = [{config_map = "conf", path = "/c"}]'
    )
    said = forebay("submit", file, "--backend", "fleet", "--fleet", fleet)
    assert said.code == 2
    lacks = "it lacks Secret hf in namespace ml, ConfigMap conf in namespace ml"
    assert lacks in " ".join(said.err.split())
    assert lacks in " ".join(forebay("fleet", "explain", file, "--fleet", fleet, "--live").out.split())
    assert not (tmp_path / "runs").exists()
    # What a Secret holds is never asked for.
    assert all("PartialObjectMetadata" in accept for path, accept in EastServer.asked if "/secrets/" in path)


def test_a_wrong_job_file_sends_no_request(fleet: Path, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    for good, wrong, line, _ in WRONG:
        file.write_text(WRONG_JOB.replace(good, wrong, 1))
        with pytest.raises(InvalidJobSpec, match=f"line {line}:"):
            submit(str(file), backend="fleet", fleet=fleet)
    assert len(WRONG) >= 40
    assert EastServer.asked == []
