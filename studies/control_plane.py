"""Cost of a run's control plane at 8 to 4,096 ranks, 8 on a node.

python -m studies.control_plane                 # a table, as Markdown
python -m studies.control_plane --ranks 8 64

The real code on a simulated transport: the coordinator, the controller with its pool and policy, the detector of
Horovod's failures, the votes of a commit and the receipts of parts. Calls are pickled and counted instead of sent.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import pickle
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import torch

from forebay.data.plan.cursor import Cursor
from forebay.events import (
    BatchesCut,
    EpochEnded,
    Evaluated,
    MachineUse,
    NodeUsed,
    Reported,
    Request,
    Started,
)
from forebay.training.checkpoint.buffer import ReusableBuffer
from forebay.training.checkpoint.checkpoint import Checkpoint, Encoder
from forebay.training.checkpoint.encoded import PartFacts
from forebay.training.checkpoint.part_memory.store import KeptPart
from forebay.training.checkpoint.parts.part import FlatChunk, PartReceipt, write_part
from forebay.training.checkpoint.parts.table import table_text
from forebay.training.checkpoint.shared_buffer import BufferHandle
from forebay.training.driver.elastic import pool as pool_module
from forebay.training.driver.elastic.coordinator import Coordinator
from forebay.training.driver.elastic.event_loop import POLL_S
from forebay.training.driver.elastic.policy import PoolView, decide
from forebay.training.driver.elastic.pool import Lost, Message, Ready, SpawnedWorker, Warmed, WorkerPool
from forebay.training.driver.horovod.failure_detector import Answered, FailureDetector
from forebay.training.driver.horovod.liveness import Entered
from forebay.training.driver.worker_main import FIRST_RANKS, Outcome
from forebay.training.monitors.monitor import Verdict
from forebay.training.runs.status import RunStatus
from forebay.training.state import rng
from forebay.training.state.epoch_totals import EpochFacts
from forebay.training.worker.commit_vote import CommitDecision, CommitVote
from forebay.world import World

RANKS = (8, 64, 512, 4096)
START = Cursor(plan_id="0" * 64, epoch=0, position=0, global_batch=1)
RANKS_OF_NODE, NODES_OF_RACK = 8, 8
HANDLE = bytes(700)
"""In place of an actor's handle, which has about this size when it is sent."""


@dataclass(slots=True)
class PlaceCost:
    """Calls, their bytes and CPU seconds at one place. `methods` counts the calls of each, where they have names."""

    calls: int = 0
    num_bytes: int = 0
    cpu_s: float = 0.0
    methods: Counter[str] = field(default_factory=Counter)

    def count(self, method: str, sent: Sequence[object], times: int = 1) -> None:
        """Count a call of `method`, with its arguments and its answer."""
        self.calls += times
        self.methods[method] += times
        self.num_bytes += times * sum(len(pickle.dumps(each)) for each in sent)

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.cpu_s += time.process_time() - began


@dataclass(slots=True)
class CountedCoordinator:
    """The coordinator of a run, whose calls are counted. Pings to workers too.

    `epochs` is the number of epochs that the run has ended. `knows_request`: rank 0 of the present world has asked for
    the request to it, and hears of changes.
    """

    ranks: int
    epochs: int = 0
    cost: PlaceCost = field(default_factory=PlaceCost)
    dead: set[int] = field(default_factory=set)
    knows_request: bool = False
    _coordinator: Coordinator = field(init=False)

    def __post_init__(self) -> None:
        self._coordinator = Coordinator(status_of(self.ranks), 3, self._is_alive)

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        sent = pickle.dumps((arguments, named))
        arguments, named = pickle.loads(sent)  # noqa: S301 - our own
        answer = await getattr(self._coordinator, method)(*arguments, **named)
        self.cost.calls += 1
        self.cost.methods[method] += 1
        self.cost.num_bytes += len(sent) + len(pickle.dumps(answer))
        return answer

    async def everybody(self, method: str, arguments: Callable[[int], tuple[Any, ...]], ranks: Sequence[int]) -> None:
        await asyncio.gather(*(self.call(method, *arguments(rank)) for rank in ranks))

    async def begin(self, size: int) -> None:
        """Open a world that all ranks join. Rank 0 reports its begin, and asks whether the driver has its results."""
        await self.call("begin", size)
        await self.everybody("join", lambda rank: (rank, handle(rank)), range(size))
        self.knows_request = False
        await self.call("report", Started(name="a", world_size=size, epochs=1, num_batches=100))
        await self.round()
        for report in self._results(self.epochs - 1) if self.epochs else ():
            await self.call("knows", report)
        await self.call("report", BatchesCut(step=0, epoch=0, position=0, global_batch=1, batches=1, world_size=size))

    async def round(self) -> None:
        """The driver takes the events that are there."""
        await self.call("take", POLL_S)
        await self.call("noted", 0)

    async def commit(self) -> None:
        """Rank 0 asks for the request to its world at its first commit, and then for the next change of it."""
        if self.knows_request:
            await self.call("committed")
            return
        await self.call("request")
        await self._hear()

    async def _hear(self) -> None:
        self.knows_request = True
        await self.call("changed", Request(stop="another request: so it does not wait"))

    async def _end_epoch(self, epoch: int) -> None:
        for report in self._results(epoch):
            await self.call("report", report)
        await self.round()
        await self.call("synced_request", 0)
        if not self.knows_request:
            await self._hear()

    def _results(self, epoch: int) -> tuple[Evaluated, EpochEnded]:
        place: dict[str, Any] = {"epoch": epoch, "step": 100, "metrics": {"loss": 1.0}, "rows": 100}
        spent = dict.fromkeys(("seconds", "wait_s", "eval_s", "checkpoint_s"), 1.0)
        counters = {f"counter_{number}": 1.0 for number in range(20)}
        ended = EpochEnded(**place, **spent, counters=counters)
        return Evaluated(position=0, ends_epoch=True, **place), ended

    async def resize(self, size: int, to: int) -> None:
        """All ranks pause at their next commit, and those of the next world join it."""
        await self.ask_resize(size, to)
        await self.commit()
        await self.change_world(size, to)

    async def ask_resize(self, size: int, to: int) -> None:
        """A smaller world is asked for by its target, a larger one by `resize` too."""
        await self.call("set_target", to)
        if to > size:
            await self.call("resize", to)
        self.knows_request = False

    async def change_world(self, size: int, to: int, pauses: int = 1) -> None:
        """All ranks pause, for which the controller asks `pauses` times, and the next world begins."""
        await self.everybody("pause", lambda rank: (rank,), range(size))
        for _ in range(pauses):
            assert await self.call("all_paused", 60.0)
        await self.begin(to)

    async def train(self, *, steps: int, looks: int, commits: int, epochs: int = 0) -> None:
        """Steps that are reported, commits, looks of the controller, and ends of epochs."""
        for step in range(steps):
            reported = Reported(step=step + 1, epoch=0, position=step, metrics={"loss": 1.0}, rows=step)
            await self.call("report", reported)
            await self.round()
        for _ in range(looks):
            await self.call("view")
        for _ in range(commits):
            await self.commit()
        for _ in range(epochs):
            await self._end_epoch(self.epochs)
            self.epochs += 1

    async def report_use(self, ranks: int) -> None:
        """The first rank of each node reports the node's use, if it is one of the first ranks of the world."""
        use = MachineUse(*[0.123456789] * len(MachineUse._fields))
        for _ in range(0, min(ranks, FIRST_RANKS), RANKS_OF_NODE):
            await self.call("report", NodeUsed(node="node-00001", use=use))
            await self.round()

    async def wait(self, rounds: int) -> None:
        """The driver asks for events, and none comes."""
        for _ in range(rounds):
            self._coordinator._events.append(None)  # noqa: SLF001 - so that it does not wait
            await self.round()

    async def _is_alive(self, worker: bytes) -> bool:
        self.cost.calls += 1
        return int.from_bytes(worker[:4], "little") not in self.dead


def status_of(ranks: int) -> RunStatus:
    """Status of a run that begins with this many ranks."""
    return RunStatus(
        name="a",
        driver="ray",
        target=ranks,
        min_workers=1,
        max_workers=ranks,
        epochs=1,
        started_at=0.0,
        node="n",
        path="/runs/a",
    )


def handle(rank: int) -> bytes:
    return rank.to_bytes(4, "little") + HANDLE


async def life(ranks: int) -> dict[str, PlaceCost]:
    """Calls at the coordinator, by what happens."""
    made, found = CountedCoordinator(ranks), dict[str, PlaceCost]()

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        made.cost = found[name] = PlaceCost()
        with made.cost.timed():
            yield

    with phase("start"):
        await made.begin(ranks)
    with phase("10 s of training"):
        await made.train(steps=100, looks=100, commits=10)
    with phase("use of the nodes, each 5 s or later"):
        await made.report_use(ranks)
    with phase("resize by one"):
        await made.resize(ranks, ranks - 1)
    with phase("resize to half"):
        await made.resize(ranks - 1, ranks // 2)
    made.dead = set(range(min(RANKS_OF_NODE * NODES_OF_RACK, ranks // 4)))
    survivors = [rank for rank in range(ranks // 2) if rank not in made.dead]
    with phase("lost rack"):
        await made.everybody("lost", lambda _: (60.0,), survivors)
        await made.call("record_failure", "lost workers")
        await made.begin(len(survivors))
    return found


def vote_of(rank: int, state: dict[str, Any]) -> CommitVote:
    names = ("seconds", "wait_s", "eval_s", "checkpoint_s")
    facts = EpochFacts(
        rows=4096 * rank,
        spent=dict.fromkeys(names, rank / 7),
        metric_sums={"loss": rank / 3},
        metric_times={"loss": 100.0},
        counters={f"counter_{number}": float(rank) for number in range(40)},
    )
    return CommitVote(facts=facts, rng=state, verdict=Verdict(), measured=(), request=Request())


def commit(ranks: int, *, draws: bool) -> PlaceCost:
    """Votes at rank 0. With `draws`, all generators of all ranks have changed."""
    state = rng.light(rng.capture(torch.device("cpu")))
    votes = [cloudpickle.dumps(vote_of(rank, state if draws else {})) for rank in range(ranks)]
    kept, cost = rng.RankGenerators(), PlaceCost(calls=ranks, num_bytes=sum(map(len, votes)))
    kept.hear([state] * ranks)
    with cost.timed():
        heard = [cloudpickle.loads(each) for each in votes]
        kept.hear([each.rng for each in heard])
        answer = cloudpickle.dumps(CommitDecision.of(heard))
    cost.num_bytes += len(answer)
    return cost


def receipts(ranks: int) -> PlaceCost:
    """Receipts of a checkpoint in parts at rank 0, with 64 MiB and 4 tensors of each rank: not the first one."""
    sums, made = tuple(range(1 << 60, (1 << 60) + 64)), list[PartReceipt]()
    for rank in range(ranks):
        chunk = FlatChunk(shape=(8 * ranks,), offsets=(8 * rank,), values=torch.zeros(8))
        receipt = write_part(rank + 1, {f"layer.{number}": chunk for number in range(4)}, ReusableBuffer())
        made.append(replace(receipt, num_bytes=64 << 20, sums=sums, node=f"{rank // RANKS_OF_NODE:056d}"))
    table_text(made)
    sent = [cloudpickle.dumps(replace(each, contents="")) for each in made]
    cost = PlaceCost(calls=ranks, num_bytes=sum(map(len, sent)))
    with cost.timed():
        heard = [cloudpickle.loads(each) for each in sent]
        table_text([replace(each, contents=before.contents) for each, before in zip(heard, made, strict=True)])
    return cost


def part_commit(num_bytes: int = 0) -> PlaceCost:
    """Calls for a rank's part of a commit at its node's store: a buffer, the part, and the copy on the next node.

    `num_bytes` of contents are in the copy.
    """
    facts = PartFacts(number=7, num_bytes=1 << 20, checksum="0" * 16, node="0" * 56)
    part = KeptPart(step=1000, sealed=990, facts=facts)
    buffer = BufferHandle(number=1, path="/proc/100000/fd/100", pid=100_000)
    cost = PlaceCost()
    for method, *sent in (
        ("acquire", (1000, 7, 990), buffer),
        ("keep", (part, 1), None),
        ("keep_copy", (part, np.zeros(num_bytes, np.uint8)), None),
    ):
        cost.count(method, sent)
    return cost


def generators(ranks: int) -> PlaceCost:
    """Random generators of all ranks in a checkpoint, which rank 0 writes."""
    states = [rng.light(rng.capture(torch.device("cpu"))) for _ in range(ranks)]
    buffer, cost = ReusableBuffer(), PlaceCost(calls=1)
    with cost.timed():
        state = {"rng": rng.saved(states)}
        checkpoint = Checkpoint(step=1, cursor=START, world=World(rank=0, size=ranks), shards={0: state})
        cost.num_bytes = Encoder().draft(checkpoint, buffer).num_bytes
    return cost


class NoProcesses:
    """`Processes` that start nothing."""

    running: frozenset[str] = frozenset()

    def spawn(self, name: str, group: Any) -> SpawnedWorker:  # noqa: ARG002
        future = SimpleNamespace(add_done_callback=lambda _: None)
        return SpawnedWorker(actor=name, ready=SimpleNamespace(future=lambda: future))

    def stop(self, name: str) -> None: ...

    def close(self) -> None: ...


def controller(ranks: int) -> dict[str, PlaceCost]:
    """Calls of the controller to the cluster, and its CPU time for each look."""
    inbox, calls = queue.SimpleQueue[Message](), PlaceCost()

    def counted(answer: Any = None) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            calls.calls += 1
            return answer

        return call

    pool_module.new_placement = counted(SimpleNamespace(id=SimpleNamespace(hex=lambda: "1")))
    pool_module.placement_group_table = counted({"1": {"state": "CREATED"}, "state": "CREATED"})
    pool_module.remove_placement_group = counted()
    pool_module.ray = SimpleNamespace(kill=counted())
    pool, found = WorkerPool("a", {"CPU": 1.0}, inbox, NoProcesses()), dict[str, PlaceCost]()

    def look(what: str, act: Callable[[], object]) -> None:
        nonlocal calls
        calls = found[what] = PlaceCost()
        with calls.timed():
            act()
            pool.hear(0)
            decide(view())

    def view(target: int = ranks) -> PoolView:
        return PoolView(
            workers=list(pool.workers.values()),
            world=pool.world,
            target=target,
            min_workers=1,
            now=time.monotonic(),
        )

    def warm() -> None:
        for number in range(ranks):
            inbox.put(Warmed(name=f"worker-{number}", ready=Ready(node=f"node-{number // RANKS_OF_NODE}")))

    look("start: spawn", lambda: pool.spawn(ranks))
    look("start: all warm", warm)
    look("start: world", lambda: pool.form_world(decide(view()).next_world))
    look("a look while training", lambda: None)
    rack = min(RANKS_OF_NODE * NODES_OF_RACK, ranks // 4)
    look("lost rack", lambda: [inbox.put(Lost(name=f"worker-{number}")) for number in range(rack)])
    look("resize to half", lambda: decide(view(ranks // 2)))
    return found


def detector(ranks: int) -> PlaceCost:
    """A Horovod world that loses half of its workers: CPU time of the detector."""
    names, cost = [f"worker-{number}" for number in range(ranks)], PlaceCost()
    with cost.timed():
        made = FailureDetector("a", names, 600.0)
        for name in names:
            made.note(Entered(name=name, world=1))
        for name in names[: ranks // 2]:
            made.note(Lost(name=name))
            made.end()
        for name in names[ranks // 2 :]:
            made.note(Answered(name=name, world=1, answer=Outcome(resize_to=1)))
            made.end()
    cost.calls = 2 * ranks
    return cost


def costs(ranks: int) -> dict[str, PlaceCost]:
    """PlaceCost at each place, by place and happening."""
    found = {f"coordinator: {name}": cost for name, cost in asyncio.run(life(ranks)).items()}
    found["rank 0: commit, no random numbers drawn"] = commit(ranks, draws=False)
    found["rank 0: commit, all generators changed"] = commit(ranks, draws=True)
    parts = part_commit()
    found["a node's store: parts of a commit, without contents"] = PlaceCost(
        calls=RANKS_OF_NODE * parts.calls, num_bytes=RANKS_OF_NODE * parts.num_bytes
    )
    found["rank 0: receipts of parts"] = receipts(ranks)
    found["rank 0: generators in a checkpoint"] = generators(ranks)
    found |= {f"controller: {name}": cost for name, cost in controller(ranks).items()}
    found["Horovod's detector: half is lost"] = detector(ranks)
    return found


def table(sizes: Sequence[int]) -> str:
    """Calls, kB and CPU ms at each place, for each number of ranks, as Markdown."""
    columns = [costs(ranks) for ranks in sizes]
    head = "| | " + " | ".join(f"{ranks:,} ranks" for ranks in sizes) + " |"
    lines = [head, "|---" * (len(sizes) + 1) + "|"]
    for name in columns[0]:
        cells = [
            f"{each[name].calls:,}; {each[name].num_bytes / 1e3:,.0f}; {each[name].cpu_s * 1e3:,.1f}"
            for each in columns
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    gc.freeze()  # the processes of a run have few of the modules that are imported here: no collection walks them
    print("Calls; kB; CPU ms.\n")
    print(table(parser.parse_args(arguments).ranks))


if __name__ == "__main__":
    main()
