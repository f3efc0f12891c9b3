"""A small training job, and a pool of processes in which it can run as two or three ranks."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import pytest

from forebay.data.loader.data import Data
from forebay.data.plan.plan import build_plan
from forebay.data.sources.scan import scan
from forebay.data.transform.features.groups import Dense, Label
from forebay.data.transform.transform import Transform
from forebay.events import EpochEnded, Evaluated, Event, Request
from forebay.training.state.known_reports import KnownReports
from forebay.world import World

NUM_PROCESSES = 4

RANK_PROCESS = """
import os, pickle, struct, sys, traceback
import torch, torch._dynamo
import forebay.training.worker.evaluation
from forebay.training.collectives.torch_collective import process_group

def serve(requests, answers):
    while head := requests.read(8):
        world, meeting, payload = pickle.loads(requests.read(*struct.unpack("<q", head)))
        try:
            work, args = pickle.loads(payload)
            with process_group(world, meeting, timeout_s=30) as collective:
                answer = True, work(collective, *args)
        except Exception:
            answer = False, traceback.format_exc()
        answer = pickle.dumps(answer)
        answers.write(struct.pack("<q", len(answer)) + answer)

torch.set_num_threads(1)
# Imported once, then forked: no thread has started yet.
pairs = [tuple(map(int, pair.split(","))) for pair in sys.argv[1:]]
for read_end, write_end in pairs:
    if os.fork() == 0:
        for end in {end for pair in pairs for end in pair} - {read_end, write_end}:
            os.close(end)
        with open(read_end, "rb") as requests, open(write_end, "wb", buffering=0) as answers:
            serve(requests, answers)
        os._exit(0)
"""


class Ranks:
    """Runs a function as every rank of a world. The processes stay, since importing torch takes seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._calls = folder, 0
        to_ranks = [os.pipe() for _ in range(NUM_PROCESSES)]
        from_ranks = [os.pipe() for _ in range(NUM_PROCESSES)]
        theirs = [(to[0], back[1]) for to, back in zip(to_ranks, from_ranks, strict=True)]
        pairs = [f"{read_end},{write_end}" for read_end, write_end in theirs]
        # They use the same numbers for the pipes as we do. None inherits another's end, so closing ends them.
        subprocess.run(
            [sys.executable, "-c", RANK_PROCESS, *pairs], pass_fds=[end for ends in theirs for end in ends], check=True
        )
        for end in (end for ends in theirs for end in ends):
            os.close(end)
        self._requests = [open(to[1], "wb", buffering=0) for to in to_ranks]  # noqa: SIM115, PTH123
        self._answers = [open(back[0], "rb") for back in from_ranks]  # noqa: SIM115, PTH123

    def __call__(self, size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
        """Run `work(collective, *args)` on `size` ranks. Returns answers by rank, or fails with the ranks' errors."""
        self._calls += 1
        meeting = self._folder / f"meeting-{self._calls}"
        cloudpickle.register_pickle_by_value(sys.modules[work.__module__])
        payload = cloudpickle.dumps((work, args))
        for rank, requests in enumerate(self._requests[:size]):
            request = pickle.dumps((World(rank=rank, size=size), meeting, payload))
            requests.write(struct.pack("<q", len(request)) + request)
        answers = [pickle.loads(self._receive(each)) for each in self._answers[:size]]
        failures = [answer for succeeded, answer in answers if not succeeded]
        assert not failures, "\n".join(failures)
        return [answer for _, answer in answers]

    def close(self) -> None:
        """Each process ends when it reads the end of its requests."""
        for pipe in [*self._requests, *self._answers]:
            pipe.close()

    @staticmethod
    def _receive(pipe: BinaryIO) -> bytes:
        head = pipe.read(8)
        assert head, "a rank died"
        return pipe.read(*struct.unpack("<q", head))


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pool = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


class EventRecorder:
    """A `Reporter` that records all events.

    It asks to stop from the `stop_at`-th saved commit on, and sends what `request` returns for a commit, counted
    from 1.
    """

    def __init__(self, stop_at: int | None = None, request: Callable[[int], Request] | None = None) -> None:
        self.events: list[Event] = []
        self.known = KnownReports()
        self.questions, self._stop_at, self._request = 0, stop_at, request

    def report(self, *events: Event) -> None:
        self.events += events
        for event in events:
            if isinstance(event, EpochEnded | Evaluated):
                self.known.note(event)

    def forget(self) -> None:
        """Forget all events, as the next driver after one that died with its record."""
        self.events, self.known = [], KnownReports()

    def knows(self, report: EpochEnded | Evaluated) -> bool:
        return self.known.knows(report)

    def request(self) -> Request:
        self.questions += 1
        if self._stop_at is not None and self.questions >= self._stop_at:
            return Request(stop="enough")
        return Request() if self._request is None else self._request(self.questions)

    def synced_request(self) -> Request:
        assert isinstance(self.events[-1], EpochEnded), "asked before the end of the epoch was told"
        return self.request()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="session")
def make_recorder() -> type[EventRecorder]:
    cloudpickle.register_pickle_by_value(sys.modules[EventRecorder.__module__])
    return EventRecorder


@pytest.fixture
def make_data(parquet_folder: Callable[..., Path]) -> Callable[..., Data]:
    """`make(global_batch=8, lanes=4, rows=(...), last="balance")` of 4 dense features, `label` and `id`."""

    def make(
        *,
        global_batch: int = 8,
        lanes: int = 4,
        rows: Sequence[int] = (13, 1, 20, 9),
        folder: str = "data",
        **options: Any,
    ) -> Data:
        root = parquet_folder({"a.parquet": rows[:2], "b.parquet": rows[2:]}, folder=folder)
        transform = Transform(
            x=Dense(["x1", "x2", "x3"]), id=Label("id", dtype="int64"), label=Label("clicked", dtype="float32")
        )
        plan = build_plan(scan(root), seed=3, lanes=lanes, shuffle_rows=16)
        return Data(plan=plan, transform=transform, global_batch=global_batch, **options)

    return make
