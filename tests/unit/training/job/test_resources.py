"""How many GPUs a worker gets, over tables of what was asked for and what there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption
from forebay.runtime import gpus as runtime_gpus
from forebay.runtime.gpus import GpuSupply
from forebay.training.job import resources
from forebay.training.job.resources import Resources, device_of, settled, share_text, use_device, workers_here


def supply(*nodes: float, grows: bool = False, unseen: int = 0) -> GpuSupply:
    return GpuSupply(place="the cluster" if grows else "this machine", nodes=nodes, grows=grows, unseen=unseen)


@pytest.mark.parametrize(
    ("asked", "nodes", "grows", "workers", "gets"),
    [
        # One machine: one GPU each, where there are any.
        (None, [0], False, 2, 0),
        (None, [1], False, 1, 1),
        (None, [4], False, 2, 1),
        (0, [4], False, 8, 0),
        (2, [4], False, 2, 2),
        (0.5, [1], False, 1, 0.5),
        # A cluster: a head without GPUs beside nodes with them, and workers that wait for nodes to come.
        (None, [0, 8], True, 8, 1),
        (None, [0, 8], True, 16, 1),
        (None, [0, 0], True, 2, 0),
        (1, [0, 0], True, 2, 1),
        (None, [0.5], True, 1, 0),
        (None, [], True, 1, 0),
        (0, [8, 8], True, 4, 0),
    ],
)
def test_workers_get_a_gpu_where_there_are_any(
    asked: float | None, nodes: list[float], grows: bool, workers: int, gets: float
) -> None:
    found = settled(Resources(cpus=3, gpus=asked), supply(*nodes, grows=grows), workers=workers)
    assert found == Resources(cpus=3, gpus=gets)
    assert found.bundle == {"CPU": 3, "GPU": gets}


@pytest.mark.parametrize(
    ("asked", "found", "workers", "says"),
    [
        (
            None,
            supply(1),
            2,
            r"2 workers need a GPU each, which Resources\(\) .* this machine has a GPU\. Two .* at most 1 worker .* or",
        ),
        (1, supply(2), 3, r"3 workers need a GPU each, and this machine has 2 GPUs.* at most 2 workers"),
        (8, supply(4), 1, r"1 worker need 8 GPUs, and this machine has 4 GPUs.* Give less"),
        (1, supply(0), 1, r"Resources\(gpus=1\) is set, but PyTorch .* finds no GPU on this machine\. Set gpus=0"),
        (1, supply(0, unseen=2), 1, "finds no GPU on this machine, though the machine has 2 GPUs"),
    ],
)
def test_more_than_there_is_is_refused(asked: float | None, found: GpuSupply, workers: int, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as caught:
        settled(Resources(gpus=asked), found, workers=workers)
    assert caught.value.facts["found"] == found.total


@given(
    asked=st.none() | st.integers(0, 9) | st.sampled_from([0.25, 0.5]),
    nodes=st.lists(st.integers(0, 8), max_size=4),
    workers=st.integers(1, 9),
)
def test_laws_of_the_decision(asked: float | None, nodes: list[int], workers: int) -> None:
    """A grant has room at once, or is what was asked for where nodes may join. Nothing asked for is changed."""
    here, cluster = supply(*nodes), supply(*nodes, grows=True)
    later = settled(Resources(gpus=asked), cluster, workers=workers)
    assert later.gpus == (asked if asked is not None else float(any(nodes)))
    try:
        now = settled(Resources(gpus=asked), here, workers=workers)
    except InvalidOption:
        assert later.gpus
        assert here.room(later.gpus) < workers
        return
    assert now == later
    assert not now.gpus or here.room(now.gpus) >= workers


@pytest.mark.parametrize(
    ("asked", "found", "workers", "says"),
    [
        (None, supply(1), 1, "giving the worker a GPU of its own; this machine has a GPU"),
        (None, supply(4), 2, "giving each of 2 workers a GPU of its own; this machine has 4 GPUs"),
        (2, supply(8, grows=True), 2, "giving each of 2 workers 2 GPUs of its own; the cluster has 8 GPUs"),
        (0.5, supply(1), 1, "giving the worker 0.5 of a GPU; this machine has a GPU"),
        (
            None,
            supply(0, 2, grows=True),
            4,
            "giving each of 4 workers a GPU of its own; the cluster has 2 GPUs, room for 2 workers",
        ),
        (None, supply(0, grows=True), 4, "training on CPUs: no node has a GPU now (gpus=1 waits for one that joins)"),
        (None, supply(0), 2, None),
        (0, supply(8, grows=True), 2, None),
    ],
)
def test_a_line_says_what_was_decided(asked: float | None, found: GpuSupply, workers: int, says: str | None) -> None:
    wanted = Resources(gpus=asked)
    assert share_text(wanted, settled(wanted, found, workers=1), found, workers=workers) == says


def test_gpus_that_pytorch_does_not_find_are_named() -> None:
    wanted, found = Resources(), supply(0, unseen=1)
    said = share_text(wanted, settled(wanted, found, workers=1), found, workers=1)
    assert said is not None
    assert said.startswith("training on the CPU: this machine has a GPU, and PyTorch ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpus": 1.5}, r"gpus=1\.5\) is no share of a node: only one GPU can be shared"),
        ({"gpus": "1"}, r"gpus='1'\) is not a number"),
        ({"gpus": True}, r"gpus=True\) is not a number"),
        ({"cpus": None, "gpus": 1}, r"cpus=None\) is not a number"),
        ({"gpus": float("nan")}, r"gpus=nan\) cannot run a worker"),
        ({"gpus": float("inf")}, r"gpus=inf\) cannot run a worker"),
    ],
)
def test_shares_that_no_node_has_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Resources(**options)


@pytest.mark.parametrize(
    ("found", "asked", "workers"), [(0, None, 2), (1, None, 1), (8, None, 8), (8, 2, 4), (8, 0, 2), (1, 0.5, 1)]
)
def test_default_number_of_workers_follows_the_gpus(
    monkeypatch: pytest.MonkeyPatch, found: int, asked: float | None, workers: int
) -> None:
    monkeypatch.setattr(runtime_gpus, "num_gpus", lambda: found)
    assert workers_here(asked) == workers


@pytest.mark.parametrize(
    ("gpus", "position", "device"),
    [(None, 3, "cpu"), (0, 3, "cpu"), (1, 0, "cuda:0"), (1, 3, "cuda:3"), (2, 1, "cuda:2"), (0.5, 0, "cuda:0")],
)
def test_each_worker_trains_on_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, gpus: float | None, position: int, device: str
) -> None:
    monkeypatch.setattr(resources, "num_gpus", lambda: 4)
    assert device_of(Resources(gpus=gpus), position) == torch.device(device)


@pytest.mark.parametrize(("found", "says"), [(0, "finds no GPU in its process"), (1, "finds 1 GPU in its process")])
def test_a_worker_without_its_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, found: int, says: str) -> None:
    monkeypatch.setattr(resources, "num_gpus", lambda: found)
    with pytest.raises(InvalidOption, match=says):
        device_of(Resources(gpus=1), 1)


def test_a_gpu_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: object) -> None:
        raise RuntimeError("the NVIDIA driver on your system is too old")

    monkeypatch.setattr(torch.cuda, "set_device", fail)
    assert use_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(InvalidOption, match=r"cannot use cuda:1 \(the NVIDIA driver .* too old\)\. Free it or renew"):
        use_device(torch.device("cuda", 1))
