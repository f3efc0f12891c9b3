"""Rank of the study of prefetched ids: `python -m studies.tables.ahead SETTING ANSWER RANK`.

It trains DLRMs that differ in when owners are asked for rows. They take each step in turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench.processes import answer_and_exit
from bench.tables import links
from bench.tables.setting import TableSetting
from jobs.train_dlrm import DLRM
from torch import Tensor, nn
from torch.optim import Adam

from forebay.training.collectives.collective import Collective
from forebay.training.collectives.torch_collective import process_group
from forebay.training.strategies.ddp import TorchDataParallel
from forebay.training.strategies.strategy import StrategyOptions
from forebay.training.tables.exchange.pending_lookup import RoutedIds
from forebay.training.tables.optimizers import RowWiseAdagrad
from forebay.training.tables.options import Tables
from forebay.training.tables.shared_rows import SharedRows
from forebay.training.tables.strategy import with_tables
from forebay.training.tables.wire import WireName
from forebay.world import World

INLINE, BESIDE, KNOWN = "in the step", "beside the step", "before the run"
AHEAD_WAYS = (INLINE, BESIDE, KNOWN)
"""When unique ids are found and exchanged. The last one costs a step nothing: no prefetch can be faster."""
PHASES = ("unique", "counts", "ids", "rows", "gradients")
NUM_DENSE = 13
_TIMEOUT_S = 380.0
_UNMEASURED_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadSetting(TableSetting):
    """Worlds whose messages are `delay_ms` late: before each one, ranks sleep. An all-reduce has 2 (ranks - 1)."""

    delay_ms: float = 0.0
    wire: WireName = "float32"

    def delay(self, messages: int = 1) -> None:
        if self.delay_ms:
            time.sleep(messages * self.delay_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Asked:
    """Lookup whose ids are with their owners. This rank is asked for `places`, for `receive[r]` of them by rank r."""

    routed: RoutedIds
    places: Tensor
    receive: Sequence[int]


@dataclass(slots=True)
class Phase:
    """Seconds of a phase of lookups, CPU seconds of its thread, and bytes sent to other ranks."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    sent_bytes: int = 0


class AheadTensors:
    """`TensorCollectives` of one table, whose ids may have been exchanged before. Measures the phases of lookups."""

    def __init__(self, setting: AheadSetting, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.known: Asked | None = None
        self.phases = {phase: Phase() for phase in PHASES}
        self._setting, self._group = setting, group
        self._answers = cycle(("rows", "gradients"))

    def exchange(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int] | None = None
    ) -> tuple[Tensor, Sequence[int]]:
        if receive is not None:
            return self._sent(next(self._answers), rows, send, receive), receive
        if self.known is not None:
            return self.known.places, self.known.receive
        ones = [1] * self.world_size
        receive = self._sent("counts", torch.tensor(send), ones, ones).tolist()
        return self._sent("ids", rows, send, receive), receive

    @contextmanager
    def timed(self, name: str) -> Iterator[Phase]:
        began, cpu, phase = time.perf_counter(), time.thread_time(), self.phases[name]
        yield phase
        phase.seconds += time.perf_counter() - began
        phase.cpu_s += time.thread_time() - cpu

    def _sent(self, name: str, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        with self.timed(name) as phase:
            self._setting.delay()
            received = rows.new_empty((sum(receive), *rows.shape[1:]))
            dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send), group=self._group)
            width = rows.element_size() * rows.shape[1:].numel()
            phase.sent_bytes += (sum(send) - send[self.rank]) * width
            return received


class AheadModel:
    """DLRM that asks owners for rows in one of `AHEAD_WAYS`."""

    def __init__(self, way: str, setting: AheadSetting, collective: Collective, ids: Sequence[Tensor]) -> None:
        """`ids` are this rank's, by step."""
        torch.manual_seed(0)
        self._way, self._setting, self._ids = way, setting, ids
        model = DLRM(NUM_DENSE, setting.columns, setting.rows, setting.dim)
        options = StrategyOptions(reduction="mean", plan=None, seed=1)  # type: ignore[arg-type]
        tables = Tables(RowWiseAdagrad(lr=0.05), placement="rows", wire=setting.wire)
        strategy = with_tables(TorchDataParallel(collective, options), "ddp", model, tables, collective, options)
        trained, self._optimizer = strategy.prepare(model, partial(Adam, lr=2e-3))
        self._model, self._loss = strategy.wrap(trained), nn.BCEWithLogitsLoss()
        shared = model.table.shared
        assert isinstance(shared, SharedRows), "placed by prepare()"
        self._route, self.tensors = shared.route, AheadTensors(setting)
        self._beside = AheadTensors(setting, dist.new_group(backend="gloo"))  # All ranks make it.
        shared.tensors, shared.route = self.tensors, self._routed  # type: ignore[method-assign]
        self._thread = ThreadPoolExecutor(1)
        self._next: Future[Asked] | None = None
        self._step = 0
        self._known = [self._ask(each) for each in ids] if way == KNOWN else []

    def step(self, dense: Tensor, label: Tensor) -> float:
        """Make the next step. Returns its loss."""
        loss = self._loss(self._model({"dense": dense, "ids": self._ids[self._step]}), label)
        following = self._ids[self._step + 1 :]
        if self._way == BESIDE and following:  # The rows have arrived: the link is idle until gradients are sent.
            self._next = self._thread.submit(self._ask, following[0])
        self._setting.delay(2 * (self.tensors.world_size - 1))  # The all-reduce of the layers' gradients.
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(loss)

    def close(self) -> None:
        self._thread.shutdown()

    def _routed(self, ids: Tensor) -> RoutedIds:
        if self._way == INLINE:
            with self.tensors.timed("unique"):
                return self._route(ids)
        if self._way == KNOWN:
            asked = self._known[self._step]
        else:
            asked = self._ask(ids) if self._next is None else self._next.result()
        self.tensors.known = asked
        return asked.routed

    @torch.no_grad()
    def _ask(self, ids: Tensor) -> Asked:
        routed = self._route(ids.reshape(-1))
        return Asked(routed, *self._beside.exchange(routed.asked, routed.send))


def measure(setting: AheadSetting, rank: int, meeting: Path) -> dict[str, Any]:
    """Train in all ways, step by step in turn. Returns the figures of this rank by way."""
    torch.set_num_threads(1)
    links.join(rank)
    with process_group(World(rank=rank, size=setting.workers), f"file://{meeting}", timeout_s=_TIMEOUT_S) as collective:
        steps = setting.steps + _UNMEASURED_STEPS
        ids = [torch.from_numpy(setting.lookups(step, rank)) for step in range(steps)]
        ways = {way: AheadModel(way, setting, collective, ids) for way in setting.ways}
        if setting.mbit:
            links.limit(rank, setting.mbit)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for step in range(steps):
            torch.manual_seed(step)
            dense, label = torch.rand(len(ids[step]), NUM_DENSE), torch.rand(len(ids[step])).round()
            for way in _turned(setting.ways, step):
                found[way].append(_step(ways[way], dense, label))
        if setting.mbit:
            links.limit(rank, 0)
        for each in ways.values():
            each.close()
        measured: dict[str, Any] = {way: _by_name(each[_UNMEASURED_STEPS:]) for way, each in found.items()}
        return {**measured, "unique": [len(torch.unique(each)) for each in ids]}


def _step(trained: AheadModel, dense: Tensor, label: Tensor) -> dict[str, Any]:
    before = {name: replace(phase) for name, phase in trained.tensors.phases.items()}
    dist.barrier()
    began, cpu, sent = time.perf_counter(), time.process_time(), links.sent_bytes()
    loss = trained.step(dense, label)
    dist.barrier()
    found = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "loss": loss}
    found["sent_bytes"] = links.sent_bytes() - sent
    for name, phase in trained.tensors.phases.items():
        for figure, value in asdict(phase).items():
            found[f"{name} {figure}"] = value - getattr(before[name], figure)
    return found


def _by_name(steps: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [step[name] for step in steps] for name in steps[0]}


def _turned(ways: Sequence[str], step: int) -> Sequence[str]:
    first = step % len(ways)
    return [*ways[first:], *ways[:first]]


def main() -> None:
    setting, answer, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    read = AheadSetting.from_json(json.loads(setting.read_text()))
    answer_and_exit(answer, lambda: measure(read, rank, setting.with_name("meeting")))


if __name__ == "__main__":
    main()
