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

import forebay as fb
from forebay.cli.fleet.submit import submit
from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.federation.kube_clusters import KubeClusters
from forebay.fleet.fleet_file import load_fleet
from forebay.fleet.placement.capacity import Capacity, NodeGroup, Shape
from forebay.fleet.rayjob.attempt import PlacedAttempt

pytest.importorskip("kubernetes")
Call = Callable[..., Any]
GIB = 1 << 30
FLEET = """
[[cluster]]
name = "east"
context = "east"
namespace = "ml"
image = "registry.example/forebay@sha256:00"
[cluster.skus.h100]
cpu = 64
memory = "512Gi"
gpus = 8
pricePerHour = 30
[[cluster]]
name = "lost"
context = "lost"
image = "registry.example/forebay@sha256:00"
[cluster.skus.h100]
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
    assert said.code == 3
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
    assert said.code == 3
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


CATALOGUE = f"{CORE}/configmaps/forebay-catalogue"
SHORT = """
[[cluster]]
name = "east"
context = "east"
namespace = "ml"
"""


def catalogue(**changes: Any) -> dict[str, Any]:
    sku = {"cpu": "64", "memory": "512Gi", "gpus": 8, "pricePerHour": 30, "nodeSelector": {"sku": "h100"}}
    facts = {
        "version": 2,
        "namespace": "ml",
        "image": {"repository": "registry.example/forebay", "digest": "sha256:" + "0" * 64, "pullSecrets": ["pull"]},
        "skus": {"h100": sku},
        "serviceAccount": "forebay-ray",
        "cache": {"mode": "emptyDir", "path": "/cache", "sizeLimit": "5Ti"},
        "storage": {"secretEnv": {"AWS_SECRET_ACCESS_KEY": "lake/key"}},
    }
    return {"metadata": {}, "data": {"catalogue.json": json.dumps({**facts, **changes})}}


def test_explain_says_what_a_job_gets_and_from_where(forebay: Call, fleet: Path, tmp_path: Path) -> None:
    fleet.write_text(SHORT)
    EastServer.found[CATALOGUE] = catalogue()
    file = tmp_path / "job.toml"
    file.write_text(
        JOB.replace("STORAGE", str(tmp_path / "runs")).replace("min = 3", "min = 1")
        + '[launch]\nsecret_env = {HF_TOKEN = "hf/token"}\n'
    )
    said = forebay("fleet", "explain", file, "--fleet", fleet)
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines()[1:])) <= 80
    text = " ".join(said.out.split())
    assert "its pods get by the ConfigMap forebay-catalogue in namespace ml of east: image: registry.example/" in text
    for fact in (
        "account: forebay-ray",
        "pull secrets: pull",
        "node selector, on-demand: sku=h100",
        "cache: emptyDir, 5Ti at /cache",
        "variable AWS_SECRET_ACCESS_KEY: Secret lake/key",
        "its pods get by the job file: variable HF_TOKEN: Secret hf/token",
    ):
        assert fact in text, fact
    assert [path for path, _ in EastServer.asked] == [CATALOGUE]
    facts = json.loads(forebay("fleet", "explain", file, "--fleet", fleet, "--json").out)["tasks"][0]
    pod = facts["ray_job"]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    shown = {each["what"]: each["value"] for each in facts["pods"]}
    assert shown["account"] == pod["serviceAccountName"] == "forebay-ray"
    said = forebay("fleet", "clusters", "--fleet", fleet, "--json")
    (row,) = json.loads(said.out)["clusters"]
    assert row["fault"] is None and row["pools"][0]["price_per_hour"] == 30


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (None, "forebay-catalogue in namespace ml of east is missing. Install the chart"),
        ({"metadata": {}, "data": {"catalogue.json": '{"name": "here"}'}}, "was written by an older chart"),
        ({"metadata": {}}, "is not a catalogue of a cluster"),
        (catalogue(server="https://evil.example"), "server: this key is unknown"),
    ],
)
def test_a_cluster_without_a_catalogue_is_refused_by_name(
    forebay: Call, fleet: Path, tmp_path: Path, found: Any, fault: str
) -> None:
    fleet.write_text(SHORT)
    if found is not None:
        EastServer.found[CATALOGUE] = found
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace("STORAGE", str(tmp_path / "runs")).replace("min = 3", "min = 1"))
    for words in (("explain", file), ("explain", file, "--live"), ("clusters",)):
        said = forebay("fleet", *words, "--fleet", fleet)
        assert fault in " ".join((said.out + said.err).split()), words
    assert forebay("fleet", "explain", file, "--fleet", fleet).code == 3
    # Beside it, another cluster goes on.
    fleet.write_text(SHORT + FLEET.replace("east", "west"))
    said = forebay("fleet", "explain", file, "--fleet", fleet)
    assert (said.code == 3 and "no cluster of the fleet may be used" not in said.err) or said.code == 0


def test_a_cluster_that_is_described_twice_is_refused(forebay: Call, fleet: Path) -> None:
    EastServer.found[CATALOGUE] = catalogue()
    (row, _) = json.loads(forebay("fleet", "clusters", "--fleet", fleet, "--json").out)["clusters"]
    assert "describes the cluster, and the fleet file does, too. Keep name, context" in row["fault"]


def test_a_change_of_a_catalogue_is_noticed_by_the_next_round(fleet: Path) -> None:
    fleet.write_text(SHORT)
    clusters = KubeClusters(load_fleet(fleet))
    assert "is missing" in (clusters.look_all(0.0)["east"].capacity.fault or "")
    EastServer.found[CATALOGUE] = catalogue()
    for account in ("forebay-ray", "another"):
        EastServer.found[CATALOGUE] = catalogue(serviceAccount=account)
        view = clusters.look_all(1.0)["east"]
        assert view.capacity.fault is None and view.cluster is not None
        assert (view.cluster.service_account, clusters.fleet().named("east").service_account) == (account, account)
    # One that cannot be read places nothing, and the jobs there are followed.
    EastServer.found[CATALOGUE] = catalogue(skus={})
    view = clusters.look_all(2.0)["east"]
    assert "skus: it is missing" in (view.capacity.fault or "") and view.ray_jobs
    # Its SKU was removed: an attempt that was to be created there goes elsewhere.
    EastServer.found[CATALOGUE] = catalogue(skus={"a100": {"cpu": "8", "memory": "8Gi"}})
    clusters.look_all(3.0)
    task = fb.fleet.Task(command=("true",))
    spec = fb.JobSpec(name="ctr", storage="s3://a/b", task=(task,))
    with pytest.raises(InvalidOption, match="east has no SKU h100 now: the ConfigMap forebay-catalogue"):
        clusters.create("east", PlacedAttempt(spec=spec, task=task, number=1, sku="h100"))
