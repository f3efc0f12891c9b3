"""GPUs of an engine, over tables of requests and what there is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from forebay.errors import InvalidOption
from forebay.llm.score.engines import hf
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.score.request import ScoreRequest
from forebay.runtime.gpus import GpuSupply


def request(**options: Any) -> ScoreRequest:
    return ScoreRequest(model="m", data="d", to="t", **options)


@pytest.mark.parametrize(
    ("options", "nodes", "grows", "gets"),
    [
        ({}, (0.0, 2.0), True, 1.0),
        ({}, (0.0,), True, 0.0),
        ({}, (0.0,), False, 0.0),
        ({"gpus_per_worker": 0}, (8.0,), False, 0.0),
        ({"gpus_per_worker": 0.5}, (1.0,), False, 0.5),
        ({"gpus_per_worker": 1}, (0.0,), True, 1.0),
        ({"engine": "vllm", "tensor_parallel": 4}, (8.0,), False, 4.0),
        ({"engine": "vllm", "tensor_parallel": 4}, (0.0,), True, 4.0),
        ({"engine": "vllm"}, (0.0,), False, 0.0),
        ({"engine": "openai"}, (8.0,), False, 0.0),
    ],
)
def test_an_engine_gets_a_gpu_where_there_are_any(
    options: dict[str, Any], nodes: tuple[float, ...], grows: bool, gets: float
) -> None:
    assert request(**options).gpus_of(GpuSupply(place="the cluster", nodes=nodes, grows=grows)) == gets


@pytest.mark.parametrize("options", [{"gpus_per_worker": 2}, {"engine": "vllm", "tensor_parallel": 2}])
def test_an_engine_without_room_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"needs 2 GPUs on one node .* this machine has 1\. Set less, or gpus_per"):
        request(**options).gpus_of(GpuSupply(place="this machine", nodes=(1.0,)))


@pytest.mark.parametrize(
    ("found", "gpus", "device"), [(0, None, "cpu"), (0, 0, "cpu"), (1, None, "cuda:0"), (1, 0, "cpu"), (2, 1, "cuda:0")]
)
def test_device_of_an_engine(monkeypatch: pytest.MonkeyPatch, found: int, gpus: float | None, device: str) -> None:
    monkeypatch.setattr(hf, "num_gpus", lambda: found)
    spec = request(gpus_per_worker=gpus).engine_spec()
    assert isinstance(spec, HfEngineSpec)
    assert spec.device == torch.device(device)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cpus_per_worker": math.nan}, "cpus_per_worker=nan cannot run an engine"),
        ({"gpus_per_worker": -1}, "gpus_per_worker=-1 cannot run an engine"),
    ],
)
def test_values_that_cannot_work(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        ScoreRequest(**{"model": "m", "data": "d", "to": "t"} | options)


def test_gpus_of_an_engine_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "num_gpus", lambda: 0)
    with pytest.raises(InvalidOption, match="gpus_per_worker=1 is set, but PyTorch .* finds no GPU"):
        _ = HfEngineSpec(model="m", gpus=1).device
