"""One rank of a world, in a process of its own: `python -m bench.tables.rank SETTING ANSWER RANK`."""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.processes import answer_and_exit
from bench.tables import links
from bench.tables.setting import TableSetting
from bench.tables.ways import FOREBAY, build, ranks_of
from forebay.training.collectives.collective import Collective
from forebay.training.collectives.torch_collective import process_group
from forebay.world import World

_TIMEOUT_S = 380.0
_PROBED = 512
_OF_STEPS = ("seconds", "cpu_s", "sent_bytes", "sent_packets", "unique", "loss")


def measure(setting: TableSetting, rank: int, meeting: Path) -> dict[str, Any]:
    """Train in all ways. Returns the figures of this rank by way."""
    torch.set_num_threads(1)
    links.join(rank)
    world = World(rank=rank, size=ranks_of(setting, setting.ways[0]))
    with process_group(world, meeting, timeout_s=_TIMEOUT_S) as collective:
        # The first steps of a process load libraries and make buffers, which are not the table's.
        small = replace(setting, rows=1000, steps=2, dense_steps=2, mbit=0)
        for way in setting.ways:
            _train(way, small, collective)
        turns = [{way: _train(way, setting, collective) for way in setting.ways} for _ in range(setting.turns)]
        return {way: _joined([turn[way] for turn in turns]) for way in setting.ways}


def _train(way: str, setting: TableSetting, collective: Collective) -> dict[str, Any]:
    rank = collective.world.rank
    gc.collect()
    before = _resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts from here.
    step, model = build(way, setting, collective)
    if setting.mbit:
        links.limit(rank, setting.mbit)
    found: dict[str, list[float]] = {name: [] for name in _OF_STEPS}
    for number in range(setting.steps_of(way) + 1):
        ids = torch.from_numpy(setting.lookups(number, rank)) if rank < setting.workers else torch.zeros(0, 26).long()
        dist.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        sent, packets = links.sent_bytes(), links.sent_packets()
        loss = step(ids)
        dist.barrier()
        if number:
            spent = (time.perf_counter() - began, time.process_time() - cpu)
            spent += (links.sent_bytes() - sent, links.sent_packets() - packets)
            for name, value in zip(found, (*spent, len(torch.unique(ids)), loss), strict=True):
                found[name].append(float(value))
    if setting.mbit:
        links.limit(rank, 0)
    memory = {"memory_bytes": _resident_bytes() - before, "peak_bytes": _status_bytes("VmHWM") - before}
    return {**found, **memory, "probe": _probe(way, setting, model)}


def _joined(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all steps of a way, else of its last turn."""
    lists = {name: [value for turn in turns for value in turn[name]] for name in _OF_STEPS}
    return {**turns[-1], **lists}


def _probe(way: str, setting: TableSetting, model: torch.nn.Module) -> list[float]:
    """Return output for single ids, to compare two forms of numbers between ranks. All ranks call it."""
    if way not in FOREBAY:
        return []
    ids = torch.unique(torch.from_numpy(setting.lookups(0, 0)))[:_PROBED]
    with torch.no_grad():
        return [float(value) for value in model(ids.unsqueeze(1))]


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def main() -> None:
    setting, answer, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    read = TableSetting.from_json(json.loads(setting.read_text()))
    answer_and_exit(answer, lambda: measure(read, rank, setting.with_name("meeting")))


if __name__ == "__main__":
    main()
