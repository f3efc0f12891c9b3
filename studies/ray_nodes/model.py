"""Predictions for epochs and runs on Ray nodes, by the models of the data plane and of the control plane."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from studies.control_plane import RANKS_OF_NODE, CountedCoordinator, PlaceCost, part_commit
from studies.data_plane.peers import PeerCluster, Traffic, key_of

from forebay.data.cache.node.peer_directory import HeardFilter
from forebay.testing.drivers.bench import ROWS
from forebay.testing.drivers.counting_model import MOST_EPOCHS
from forebay.training.checkpoint.encoded import PartFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEpoch:
    """Requests of an epoch whose blocks are on the disks of some nodes.

    `least_at_source` row groups are on no node. `most_at_source` counts one again for each further node that needs it:
    they read it twice if they come to it within seconds.
    """

    lookups: int
    filter_requests: int
    filter_bytes: int
    block_requests: int
    busiest: int
    in_vain: int
    least_at_source: int
    most_at_source: int


ANSWER_S, DEADLINE_S = 0.01, 5.0


class LookupReplay:
    """Blocks that nodes look up, by the directories of the product.

    Args:
        held: Blocks on the disk of each node.
        missing: Blocks that each node looks up, and `at`, the times in seconds.
        answer_s: Times until the peers that a node asked together for filters have answered, first to last.
    """

    def __init__(
        self,
        held: Sequence[Collection[int]],
        missing: Sequence[Sequence[int]],
        at: Sequence[Sequence[float]],
        answer_s: Sequence[Sequence[float]],
    ) -> None:
        self.cluster, self._answer_s = PeerCluster(held, in_turn=True), [deque(times) for times in answer_s]
        self._left = [deque(zip(times, blocks, strict=True)) for times, blocks in zip(at, missing, strict=True)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def run(self) -> Traffic:
        """Look up all blocks. Returns the messages."""
        for node, left in enumerate(self._left):
            if left:
                self._at(left[0][0], lambda node=node: self._next(node))
        while self._events:
            self.cluster.now, _, act = heapq.heappop(self._events)
            act()
        return self.cluster.traffic

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _next(self, node: int) -> None:
        """Look up the next block of a node, after a round of requests for filters where those at hand lack it."""
        name, (_, block) = self.cluster.names[node], self._left[node][0]
        directory, now = self.cluster.directories[name], self.cluster.now
        if directory.is_stale(now) and not directory.holders(key_of(block), now):
            if directory.needs_list(now):
                directory.set_peers(self.cluster.transport(name).peer_names(), now)
            self._ask(node, now + DEADLINE_S)
        else:
            self._look_up(node)

    def _look_up(self, node: int) -> None:
        """Look up what is due. Other threads of a cache look up while one asks for filters."""
        name, now, left = self.cluster.names[node], self.cluster.now, self._left[node]
        is_first = True
        while left and (is_first or left[0][0] <= now):
            key, is_first = key_of(left[0][1]), False
            if self.cluster.directories[name].holders(key, now):
                self.cluster.lookups[name].find(key, 1)
            self.cluster.keep(name, left.popleft()[1])
        if left:
            self._at(left[0][0], lambda: self._next(node))

    def _ask(self, node: int, give_up: float) -> None:
        name, now = self.cluster.names[node], self.cluster.now
        directory = self.cluster.directories[name]
        asked = directory.to_ask(now)
        if not asked or now >= give_up:
            directory.end_round(now)
            self._look_up(node)
            return
        known, waits = directory.fresh(now), self._answer_s[node]
        # The last time again, should the product ask more often here than in the run.
        answer_s = (waits.popleft() if len(waits) > 1 else waits[0]) if waits else ANSWER_S

        def answer() -> None:
            answers = self.cluster.transport(name).ask_filters(asked, known, directory.fresh_s, DEADLINE_S)
            self._at(now + answer_s, lambda: record(answers))

        def record(answers: Mapping[str, Mapping[str, HeardFilter]]) -> None:
            directory.record_answers(asked, answers, self.cluster.now)
            self._ask(node, give_up)

        # Peers answer at once. Most of the time passes until the asking process gets to the answers.
        self._at(now + answer_s / 4, answer)


def model_of(
    needed: Sequence[Collection[int]],
    held: Sequence[Collection[int]],
    looked_up_at: Sequence[Sequence[float]] = (),
    answer_s: Sequence[Sequence[float]] = (),
) -> ModelEpoch:
    """Epoch of nodes that need some blocks each, and hold others.

    `looked_up_at` are times at which nodes looked up a block in a run, and `answer_s` the times that their requests for
    filters took: by default all nodes look up at once. Of a node that looked up fewer blocks than the plan says, the
    last time counts for all others.
    """
    missing = [sorted(set(blocks) - set(mine)) for blocks, mine in zip(needed, held, strict=True)]
    times = [
        [*given, *[given[-1] if given else 0.0] * len(blocks)][: len(blocks)]
        for given, blocks in zip(looked_up_at or [()] * len(missing), missing, strict=True)
    ]
    traffic = LookupReplay(held, missing, times, answer_s or [()] * len(missing)).run()
    there = set[int]().union(*held)
    at_source = Counter(block for blocks in missing for block in blocks if block not in there)
    return ModelEpoch(
        lookups=sum(map(len, missing)),
        filter_requests=traffic.asked_filters.total(),
        filter_bytes=traffic.filter_bytes.total(),
        block_requests=traffic.asked_blocks.total(),
        busiest=max(traffic.asked_blocks.values(), default=0),
        in_vain=traffic.blocks_in_vain,
        least_at_source=len(at_source),
        most_at_source=at_source.total(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What happened in a phase of a run.

    Attributes:
        before: Ranks that trained when it began, 0 for none.
        began: Ranks of the worlds that began in it.
        steps: Steps of rank 0.
        checkpoints: Whether each checkpoint was the end of an epoch.
        epochs_before: Epochs that had ended.
        parts: Parts of checkpoints that ranks wrote, and the bytes of all of them.
        uses: Reports about the use of a machine.
        uploads: Uploads of a checkpoint in parts, as they were counted, from `stores` nodes.
        looks: Looks of the controller, as they were counted.
        idle: Times that the driver waited for events in vain.
        pauses: Times that the controller asked whether all ranks have paused.
        is_end: The run was stopped.
    """

    before: int = 0
    began: Sequence[int] = ()
    steps: int = 0
    checkpoints: Sequence[bool] = ()
    epochs_before: int = 0
    parts: int = 0
    part_bytes: int = 0
    uses: int = 0
    uploads: int = 0
    stores: int = 0
    looks: int = 0
    idle: int = 0
    pauses: int = 1
    is_end: bool = False

    def coordinator_cost(self) -> PlaceCost:
        """Calls at the coordinator, by the model of the control plane."""
        made = CountedCoordinator(max(self.before, *self.began, 1), self.epochs_before)
        return asyncio.run(self._lead(made))

    def part_store_cost(self) -> PlaceCost:
        """Calls at all part stores. A new world reads what its ranks need of the parts of the world before it."""
        each, cost = part_commit(), PlaceCost()
        cost.calls, cost.num_bytes = self.parts * each.calls, self.parts * each.num_bytes + self.part_bytes
        for method, calls in each.methods.items():
            cost.methods[method] = self.parts * calls
        for size, to in pairwise([self.before, *self.began]):
            if size < 2:
                continue
            needed = parts_needed(size, to)
            elsewhere = sum(len(parts - {rank}) for rank, parts in enumerate(needed))
            cost.count("locate", [FACTS, "/proc/100000/fd/100"], sum(map(len, needed)))
            # A node has a copy of another one's part too.
            cost.count("fetch", [FACTS, bytes(PARAMETER_BYTES // size)], round(elsewhere * (1 - 1 / (size - 1))))
        for method, nodes in (("held", self.stores), ("upload", self.before), ("uploaded", self.stores)):
            if self.uploads:
                cost.count(method, [[FACTS]], self.uploads * nodes)
        return cost

    async def _lead(self, made: CountedCoordinator) -> PlaceCost:
        if self.before:
            await made.begin(self.before)
        made.cost = PlaceCost()
        with made.cost.timed():
            await self._act(made)
        return made.cost

    async def _act(self, made: CountedCoordinator) -> None:
        worlds = [*((self.before,) if self.before else ()), *self.began]
        if not self.before:
            await made.begin(worlds[0])
        if self.is_end:
            await made.call("request_stop", "enough")
            made.knows_request = False
        for size, to in pairwise(worlds):
            await made.ask_resize(size, to)
        await made.train(steps=self.steps, looks=self.looks, commits=0)
        for ends_epoch in self.checkpoints:
            await made.train(steps=0, looks=0, commits=not ends_epoch, epochs=ends_epoch)
        await made.report_use(self.uses * RANKS_OF_NODE)
        await made.wait(self.idle)
        for size, to in pairwise(worlds):
            await made.change_world(size, to, self.pauses)
        if self.is_end:
            for _ in range(self.steps + self.idle):
                await made.call("give_up")
            await made.call("complete", "enough")
            await made.call("cause")
            await made.call("abort")


PARAMETER_ROWS, PARAMETER_BYTES = MOST_EPOCHS, 4 * MOST_EPOCHS * ROWS
"""Of the parameter that is cut into parts, by its rows. All others are small."""
FACTS = PartFacts(number=7, num_bytes=PARAMETER_BYTES, checksum="0" * 16, node="0" * 56)


def parts_needed(size: int, to: int, rows: int = PARAMETER_ROWS) -> list[set[int]]:
    """Parts of a world of `size` ranks that each rank of the next world needs, by FSDP's cut of `rows`.

    >>> parts_needed(4, 2, 8), parts_needed(4, 3, 8)
    ([{0, 1}, {2, 3}], [{0, 1}, {1, 2}, {3}])
    """
    old, new = -(-rows // size), -(-rows // to)
    return [
        set(range(begin // old, -(-min(begin + new, rows) // old)))
        for begin in (min(rank * new, rows) for rank in range(to))
    ]
