"""A real scrape: Ray's agent serves the counters of a run under their documented names."""

from __future__ import annotations

import logging
import re
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import ray
from ray._private import services
from tests.ray.data.cache.node.cluster import kill_cache_actors

from forebay.errors import CacheUnusable
from forebay.ray_cluster import metrics_export as ray_metrics
from forebay.ray_cluster.metrics_export import RayMetrics, exported
from forebay.runtime.metrics import GAUGES, METRICS, TAGS, Counters, exported_name
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run

WITHIN_S = 60.0
SAMPLE = re.compile(r"ray_(?P<name>forebay_\w+)\{(?P<labels>.*)\} (?P<value>\S+)")

Samples = list[tuple[str, dict[str, str], float]]


@pytest.fixture
def port(ray_off: None) -> Iterator[int]:
    """The port on which a fresh Ray serves its metrics."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = int(server.getsockname()[1])
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _metrics_export_port=number,
    )
    yield number
    kill_cache_actors()


def scrape(port: int) -> Samples | None:
    """Our samples that the agent serves. None if it does not answer."""
    host = ray.nodes()[0]["NodeManagerAddress"]
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    found = (SAMPLE.fullmatch(line) for line in text.splitlines())
    return [
        (sample["name"], dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"])), float(sample["value"]))
        for sample in found
        if sample
    ]


@pytest.fixture(autouse=True)
def agents_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics leave a node by its agent: the test has the one that Ray starts."""
    monkeypatch.setattr(services, "sys", sys)


def until(port: int, condition: Callable[[Samples], bool]) -> Samples:
    deadline, samples = time.monotonic() + WITHIN_S, None
    while time.monotonic() < deadline:
        samples = scrape(port)
        if samples and condition(samples):
            return samples
        time.sleep(0.5)
    if samples is None:
        pytest.skip("Ray's metrics agent does not serve its port on this machine")
    return samples


def total(samples: Samples, name: str, role: str) -> float:
    return sum(value for found, labels, value in samples if found == name and labels["role"] == role)


def test_a_run_can_be_followed_from_outside(port: int, tmp_path: Path) -> None:
    bench = DriverBench(tmp_path)
    job = bench.job("seen", epochs=2)
    result = run(job, "ray")
    counted = {name: sum(epoch.counters.get(name, 0) for epoch in result.epochs) for name in METRICS}
    rows, stores = exported_name("rows"), exported_name("stores")

    def is_complete(found: Samples) -> bool:  # the processes report at different times, and gauges at others
        is_counted = total(found, rows, "trainer") >= counted["rows"]
        is_stored = total(found, stores, "cache") >= counted["stores"]
        return is_counted and is_stored and set(map(exported_name, GAUGES)) <= {name for name, _, _ in found}

    samples = until(port, is_complete)
    names = {name for name, _, _ in samples}
    assert names <= {exported_name(name) for name in (*METRICS, *GAUGES)}
    assert names >= {exported_name(name) for name in METRICS if counted[name]} | set(map(exported_name, GAUGES))
    assert total(samples, rows, "trainer") == counted["rows"] == 2 * job.data.plan.num_rows
    for name in ("stores", "source_bytes", "parquet_opens"):
        assert total(samples, exported_name(name), "cache") == counted[name] > 0, "what the actor made, it made for us"
    assert 0 < total(samples, exported_name("wait_s"), "trainer") < 600
    assert job.cache
    quota = {value for name, _, value in samples if name == exported_name("cache_quota_bytes")}
    assert quota == {job.cache.quota_bytes}
    assert counted["stored_bytes"] < total(samples, exported_name("cache_used_bytes"), "cache") <= job.cache.quota_bytes
    node = ray.nodes()[0]["NodeID"][:12]
    for _, labels, _ in samples:
        assert set(TAGS) <= set(labels) and labels["node"] == node
        trainer = labels["role"] == "trainer"
        assert (labels["run"], labels["directory"]) == (("seen", "") if trainer else ("", job.cache.directory))


class MetricsRecorder:
    """Stands for one of Ray's metrics: records its calls by name."""

    told: ClassVar[list[tuple[str, float, dict[str, str]]]] = []

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        assert description
        self._name, self._keys = name, tag_keys

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert value > 0 and set(tags) == set(self._keys)
        self.told.append((self._name, value, tags))

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.told.append((self._name, value, tags))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[MetricsRecorder]:
    monkeypatch.setattr(ray_metrics, "Counter", MetricsRecorder)
    monkeypatch.setattr(ray_metrics, "Gauge", MetricsRecorder)
    monkeypatch.setattr(ray_metrics, "_END_S", 60.0)
    monkeypatch.setattr(MetricsRecorder, "told", [])
    return MetricsRecorder


def test_counters_are_told_by_what_was_added(recorder: type[MetricsRecorder]) -> None:
    counters = Counters({"hits": 5, "retries": 0})
    metrics = RayMetrics({"run": "r"}, counters.as_dict, lambda: {"cache_used_bytes": 7.0})
    metrics.flush()
    metrics.flush()
    counters.add("hits", 3)
    metrics.flush()
    hits = [told for told in recorder.told if told[0] == "forebay_hits_total"]
    assert [value for _, value, _ in hits] == [5, 3]
    assert hits[0][2] == {"role": "", "node": "", "run": "r", "directory": ""}
    assert [value for name, value, _ in recorder.told if name == "forebay_cache_used_bytes"] == [7.0] * 3
    assert {name for name, _, _ in recorder.told} == {"forebay_hits_total", "forebay_cache_used_bytes"}


def test_the_last_is_told_at_the_end_even_of_a_run_that_fails(recorder: type[MetricsRecorder]) -> None:
    counters = Counters()

    def fail() -> None:
        with exported({}, counters.as_dict):
            counters.add("rows", 9)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [value for _, value, _ in recorder.told] == [9]


@pytest.mark.parametrize("problem", [CacheUnusable("locked"), FileNotFoundError("no such directory")])
def test_a_cache_that_is_gone_is_no_reason_to_stop(
    recorder: type[MetricsRecorder], monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    monkeypatch.setattr(ray_metrics, "FLUSH_S", 0.01)
    gone = [True]

    def measured() -> dict[str, float]:
        if gone[0]:
            gone[0] = False
            raise problem
        return {"cache_used_bytes": 1.0}

    with exported({}, Counters().as_dict, measured):
        deadline = time.monotonic() + WITHIN_S
        while not recorder.told and time.monotonic() < deadline:
            time.sleep(0.01)
    assert recorder.told[0][:2] == ("forebay_cache_used_bytes", 1.0)
