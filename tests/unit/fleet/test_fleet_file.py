"""Fleet files, and jobs that no cluster could run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.fleet_file import Fleet, FleetFile, SameCluster, load_fleet, parse_fleet

FLEET = """\
[[cluster]]
name = "eu-1"
context = "gke-eu-1"
namespace = "ml"
labels = {region = "eu"}
queues = ["ads"]
priorities = ["high"]
image = "registry.example/forebay@sha256:00"
cluster = {enabled = true, name = "forebay"}
[cluster.skus.h100]
cpu = 96
memory = "1Ti"
gpus = 8
pricePerHour = 30
spotPricePerHour = 10
markets = {spot = {enabled = true}}
[cluster.hdfs]
configMap = "hadoop-conf"
[[cluster]]
name = "us-1"
context = "eks-us-1"
image = "registry.example/forebay@sha256:00"
[cluster.skus.cpu]
cpu = 16
memory = "64Gi"
"""


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return parse_fleet(FLEET)


def test_a_fleet_file_is_read(fleet: Fleet, tmp_path: Any) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    assert load_fleet(tmp_path / "fleet.toml") == fleet
    sku = fleet.named("eu-1").sku["h100"]
    assert (sku.price("spot"), sku.price("on-demand")) == (10, 30)
    assert sku.share(cpu=12_000, memory=1 << 37, gpus=4) == 0.5
    assert fleet.named("us-1").sku["cpu"].share(cpu=4000, memory=1 << 30, gpus=0) == 0.25
    with pytest.raises(InvalidOption, match="no cluster 'eu'. It has eu-1, us-1"):
        fleet.named("eu")


@pytest.mark.parametrize(
    ("good", "wrong", "line", "fault"),
    [
        ("gpus = 8", "gpuss = 8", 13, "Did you mean 'gpus'?"),
        ('"1Ti"', '"1T i"', 12, "no unit of bytes"),
        (
            'configMap = "hadoop-conf"',
            'configMap = "c"\nprincipal = "a@B"',
            19,
            "needs both keytabSecret and principal",
        ),
        ("[cluster.skus.cpu]", "[cluster.skuss.cpu]", 19, "Did you mean 'skus'?"),
        ("{spot = {enabled = true}}", "{onDemand = {enabled = false}}", 16, "at least one market"),
        ('memory = "64Gi"', 'memory = "64Gi"\n[cluster.cache]\nmode = "ephemeralClaim"', 26, "needs a storage class"),
    ],
)
def test_a_wrong_fleet_file_is_refused_with_its_line(good: str, wrong: str, line: int, fault: str) -> None:
    with pytest.raises(InvalidOption) as error:
        parse_fleet(FLEET.replace(good, wrong, 1), "f.toml")
    assert fault in str(error.value)
    assert abs(int(str(error.value).split("line ")[1].split(":")[0]) - line) <= 1


@pytest.mark.parametrize(
    "text",
    [
        FLEET.replace('"eks-us-1"', '"gke-eu-1"\nnamespace = "ml"'),
        FLEET.replace('context = "gke-eu-1"', 'server = "https://a"').replace(
            'context = "eks-us-1"', 'server = "https://a"\nnamespace = "ml"'
        ),
        FLEET.replace('"us-1"', '"eu-1"'),
    ],
)
def test_one_cluster_twice_is_refused(text: str) -> None:
    with pytest.raises(SameCluster, match="are the same"):
        parse_fleet(text)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sku": ["h10"]}, "task[0].workers.sku: the fleet has no SKU 'h10'. Did you mean 'h100'? It has cpu, h100."),
        ({"scheduling": {"clusters": ["eu-2"]}}, "no cluster of the fleet may be used"),
        ({"scheduling": {"clusters": {"region": "asia"}}}, "eu-1: no label region=asia"),
        ({"scheduling": {"deny": ["eu-*", "us-*"]}}, "denied by scheduling.deny"),
        ({"scheduling": {"queue": "adds"}}, "no queue 'adds'. Did you mean 'ads'?"),
        ({"scheduling": {"queue": "ads", "clusters": ["us-*"]}}, "no queue 'ads'. It has none."),
        ({"scheduling": {"priority": "hihg"}}, "no priority class 'hihg'. Did you mean 'high'?"),
        (
            {"launch": {"image": "rayproject/ray:1.13.0-py39"}},
            "version of Ray (launch.image: 1.13.0) than",
        ),
        ({"scheduling": {"cluster": "shared", "clusters": ["us-*"]}}, "no allowed cluster has a shared Ray cluster"),
        ({"scheduling": {"cluster": "shared"}, "launch": {"setup": "kinit"}}, "launch.setup: the pods of a shared Ray"),
        ({"scheduling": {"cluster": "shared"}, "launch": {"secret_env": {"A": "s/k"}}}, "launch.secret_env: the pods"),
    ],
)
def test_a_job_that_no_cluster_could_run_is_refused(fleet: Fleet, changes: dict[str, Any], fault: str) -> None:
    def spec(**given: Any) -> fb.JobSpec:
        workers = {"sku": given.pop("sku", ["h100"])}
        task = {"run": "a.py", "workers": workers}
        return fb.JobSpec(**{"name": "ctr", "storage": "s3://a/b", "task": (task,), **given})

    fleet.check(spec(scheduling={"clusters": {"region": "eu"}, "queue": "ads", "priority": "high"}))
    with pytest.raises(InvalidJobSpec) as error:
        fleet.check(spec(**changes))
    assert fault in str(error.value)


def test_clusters_with_another_ray_than_this_machine(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fb.JobSpec(name="ctr", storage="s3://a/b", task=(fb.fleet.Task(run="a.py"),))
    for here, is_refused in (("2.61.0", True), ("2.60.3", False), (None, False)):
        monkeypatch.setattr("forebay.fleet.fleet_file.client_ray", lambda here=here: here)
        if is_refused:
            with pytest.raises(InvalidJobSpec, match=r"\(eu-1: 2.60.0, us-1: 2.60.0\) than this machine \(2.61.0\)"):
                fleet.check(spec)
        else:
            fleet.check(spec)


def test_a_namespace_may_begin_with_a_digit() -> None:
    text = '[[cluster]]\nname = "west"\nnamespace = "{}"\n'
    assert parse_fleet(text.format("3d-vision")).cluster[0].namespace == "3d-vision"
    with pytest.raises(InvalidOption, match=r"namespace: 'a.b' is not the name"):
        parse_fleet(text.format("a.b"))


def test_images_without_a_digest_are_named(fleet: Fleet) -> None:
    spec = fb.JobSpec(name="ctr", storage="s3://a/b", task=(fb.fleet.Task(run="a.py"),))
    assert fleet.images_without_digest(spec) == ()
    tagged = dataclasses.replace(spec, launch=fb.fleet.Launch(image="registry.example/forebay:dev"))
    assert fleet.images_without_digest(tagged) == ("registry.example/forebay:dev",)


def test_a_changed_file_is_known_and_a_wrong_one_said_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    text = '[[cluster]]\nname = "west"\nimage = "i"\n[cluster.skus.cpu]\ncpu = 4\nmemory = "8Gi"\n'
    path.write_text(text)
    file = FleetFile(path)
    assert not file.has_changed()
    path.write_text(f"# a comment\n{text}")
    assert not file.has_changed(), "the clusters are the same"
    path.write_text(text.replace("cpu = 4", "cpuu = 4"))
    with pytest.raises(InvalidOption, match="cpuu"):
        file.has_changed()
    assert not file.has_changed(), "it was said"
    path.unlink()
    assert not file.has_changed(), "it is being replaced"
    path.write_text(text)
    assert not file.has_changed(), "it is as it was"
    path.write_text(text.replace("cpu = 4", "cpu = 8"))
    assert file.has_changed()


@pytest.mark.variation
def test_a_controller_starts_again_with_a_changed_file(tmp_path: Path) -> None:
    path, storage = tmp_path / "fleet.toml", tmp_path / "runs"
    storage.mkdir()
    text = '[[cluster]]\nname = "west"\ncontext = "none"\nimage = "i"\n[cluster.skus.cpu]\ncpu = 4\nmemory = "8Gi"\n'
    path.write_text(text)
    words = ["-u", "-m", "forebay", "fleet", "controller", "--fleet", str(path), "--storage", str(storage)]
    with subprocess.Popen(
        [sys.executable, *words, "--status-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            time.sleep(10)
            path.write_text("[[cluster]]\n")
            assert "the clusters stay as they were" in process.stdout.readline()
            path.write_text(text.replace("cpu = 4", "cpu = 8"))
            while "starts again with it" not in (line := process.stdout.readline()):
                assert line
            time.sleep(10)
            path.write_text(text)
            while "starts again with it" not in (line := process.stdout.readline()):
                assert line, "the new one reads the file, too"
            assert process.poll() is None
        finally:
            process.kill()
