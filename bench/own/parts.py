"""Time and memory of a checkpoint in parts of a language model of 135 M parameters, on 2 ranks under Ray.

python -m bench.own.parts --json parts.json [--quick]

A Llama of the shape of SmolLM2-135M (float32, tied weights, AdamW) is split by `strategy="fsdp2"`. Nothing is computed
but the steps of the optimizer. In turns, both ranks make a checkpoint with `worker.commit`, copy as many bytes of their
own into a file in memory with checksums, and gather the whole state on rank 0, without writing it. Linux.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.optim import Optimizer
from transformers import AutoModelForCausalLM, LlamaConfig

import forebay as fb
from bench.own import narrow
from bench.own.verdict import Figure, main, measure, spread
from bench.processes import peak_bytes
from forebay.training.checkpoint.encoded import block_sums

RANKS = 2
GLOBAL_BATCH = 64
MOST_OF_A_PART, MOST_OF_A_COPY, MOST_OF_A_GATHER = 1.10, 1.20, 0.50
SHAPE = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
WARM_UP = 3
"""Rounds that are not counted: the first checkpoints reach fresh pages of two buffers."""


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Part and peak of a rank, and the time of a checkpoint over a copy and a gather."""
    rounds, layers = (2, 2) if quick else (9, SHAPE["num_hidden_layers"])
    narrow.write(folder / "data", row_groups=WARM_UP + rounds, rows=GLOBAL_BATCH)
    found = measure(__spec__.name, "run", folder=folder, layers=layers)
    checkpoint, copy, gather = (found[name] for name in ("checkpoint_s", "copy_s", "gather_s"))
    share = found["state_bytes"] / RANKS
    peaks = [peak / max(found["part_bytes"]) for peak in found["peaks"]]
    times = f"checkpoint {spread(checkpoint)} s, copy {spread(copy)} s, gather {spread(gather)} s"
    return [
        _figure(
            "largest part of a rank, over an equal share of the state",
            [size / share for size in found["part_bytes"]],
            MOST_OF_A_PART,
            f"state {found['state_bytes'] / 1e6:.0f} MB of {found['parameters'] / 1e6:.0f} M parameters",
        ),
        _figure(
            "most memory of a rank beyond its model during the first checkpoint, over its part",
            peaks,
            MOST_OF_A_PART,
            f"rank 0 with the gather of the whole state: {found['gather_peak'] / max(found['part_bytes']):.2f}",
        ),
        _figure("checkpoint, over a copy of a rank's bytes", _ratios(checkpoint, copy), MOST_OF_A_COPY, times),
        _figure("checkpoint, over a gather on rank 0", _ratios(checkpoint, gather), MOST_OF_A_GATHER, times),
    ]


def run(folder: str, layers: int) -> dict[str, Any]:
    """Train under Ray, and return what rank 0 has measured."""
    ray.init(address="local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    answer = Path(folder) / "parts.json"
    job = fb.Job(
        train=partial(train, str(answer), layers),
        resources=fb.Resources(gpus=0),
        data=fb.Data(
            plan=fb.build_plan(fb.scan(f"{folder}/data")), transform=narrow.transform(), global_batch=GLOBAL_BATCH
        ),
        workers=RANKS,
        strategy="fsdp2",
        checkpoint_every=1,
        max_failures=0,
        storage=f"{folder}/runs",
        storage_every_s=3600.0,
        cache=None,
        name="parts",
    )
    fb.run(job, "ray")
    found: dict[str, Any] = json.loads(answer.read_text())
    ray.shutdown()
    newest = max((Path(folder) / "runs" / "parts" / "checkpoints").iterdir())
    return found | {"part_bytes": [file.stat().st_size for file in newest.glob("part-*")]}


def train(answer: str, layers: int, worker: fb.Worker) -> None:
    """Steps of the optimizer with gradients of zero, and the three measurements in turns."""
    config = LlamaConfig(**SHAPE | {"num_hidden_layers": layers})
    built = AutoModelForCausalLM.from_config(config)
    parameters = sum(each.numel() for each in built.parameters())
    model, optimizer = worker.setup(built, partial(torch.optim.AdamW, lr=1e-5))
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    copy = RawCopy(_own_tensors(model, optimizer))
    times: dict[str, list[float]] = {"checkpoint_s": [], "copy_s": [], "gather_s": []}
    gather_peaks, peaks = list[int](), list[int]()
    for batch in worker.loader():
        optimizer.step()
        if batch.ends_epoch:  # That checkpoint goes to storage too.
            _write(answer, worker, times, parameters, peaks, gather_peaks)
            worker.commit(loss=0.0)
            return
        with timed(times["checkpoint_s"], peaks):
            worker.commit(loss=0.0)
        with timed(times["copy_s"]):
            copy()
        with timed(times["gather_s"], gather_peaks):
            gather(model, optimizer)


def gather(model: nn.Module, optimizer: Optimizer) -> None:
    """Gather the whole state on rank 0, in main memory."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    get_model_state_dict(model, options=options)
    get_optimizer_state_dict(model, optimizer, options=options)


class RawCopy:
    """Copy of tensors into a file in memory, one after another, with checksums as a part has them."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._sources = [each.reshape(-1).view(torch.uint8).numpy().data for each in tensors]
        self.num_bytes = sum(map(len, self._sources))
        file = os.memfd_create("raw-copy")
        os.ftruncate(file, self.num_bytes)
        self._memory = memoryview(mmap.mmap(file, self.num_bytes))

    def __call__(self) -> None:
        begin = 0
        for source in self._sources:
            self._memory[begin : (begin := begin + len(source))] = source
        block_sums(self._memory)


def _own_tensors(model: nn.Module, optimizer: Optimizer) -> list[torch.Tensor]:
    moments = [each for values in optimizer.state.values() for each in values.values() if each.dim()]
    return [each.detach().to_local() for each in (*model.parameters(), *moments)]


@contextmanager
def timed(times: list[float], peaks: list[int] | None = None) -> Iterator[None]:
    """Add the seconds until the last rank is done, and the growth of this rank's peak memory."""
    Path("/proc/self/clear_refs").write_text("5")  # The peak is now what is resident.
    before = peak_bytes()
    dist.barrier()
    began = time.perf_counter()
    yield
    dist.barrier()
    times.append(time.perf_counter() - began)
    if peaks is not None:
        peaks.append(peak_bytes() - before)


def _write(
    answer: str,
    worker: fb.Worker,
    times: dict[str, list[float]],
    parameters: int,
    peaks: Sequence[int],
    gather_peaks: Sequence[int],
) -> None:
    """Write the figures of all ranks, on rank 0."""
    own = np.zeros(RANKS, np.int64)
    own[worker.world.rank] = peaks[0]
    first = worker.all_reduce(own).tolist()
    if worker.world.is_first:
        facts = {name: values[WARM_UP:] for name, values in times.items()}
        more = {"parameters": parameters, "state_bytes": 12 * parameters, "peaks": first}
        Path(answer).write_text(json.dumps({**facts, **more, "gather_peak": max(gather_peaks)}))


def _ratios(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, others, strict=True)]


def _figure(name: str, found: Sequence[float], most: float, note: str) -> Figure:
    measured = max(found) if "over its part" in name or "largest" in name else statistics.median(found)
    return Figure(figure=name, target=f"<= {most:g}", measured=measured, unit="x", passed=measured <= most, note=note)


if __name__ == "__main__":
    children: dict[str, Callable[..., Any]] = {"run": run}
    main(figures, children)
