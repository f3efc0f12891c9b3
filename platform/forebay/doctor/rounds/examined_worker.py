"""Worker that draws the batches of an examination.

It saves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch

from forebay.data.loader.batch import Batch
from forebay.doctor.rounds.examination import Examination
from forebay.errors import BadJob
from forebay.events import EpochEnded, Evaluated, Event, Request
from forebay.training.checkpoint.checkpoint import Checkpoint
from forebay.training.checkpoint.encoded import PartFacts
from forebay.training.checkpoint.parts.part import LocalChunk, PartReceipt
from forebay.training.checkpoint.parts.verified_part import ReadBytes
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.worker.evaluator import EvaluateNow
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import TrainFunction, Worker


class ExaminedWorker(Worker):
    """The only rank of an examination.

    Its `loader` yields the batches of `examination`, and then ends the run.
    """

    def __init__(self, spec: TrainSpec, examination: Examination, device: torch.device) -> None:
        super().__init__(spec, SingleProcessCollective(device), None, NoCheckpoints(), UnheardReporter())
        self._examination = examination
        self._has_loader = False

    def loader(self) -> Iterator[Batch]:
        """Yield the batches of all rounds, already on the device."""
        self._has_loader = True
        self._is_displaced = False
        self._progress.discard_pending()
        self._state.totals.start_clock()
        if not self._examination.is_over:
            yield from self._progress.batches(self._examination)
        self.stopped = "the examination is over"

    def evaluate_with(self, evaluate: EvaluateNow) -> None:
        """Do nothing: steps are measured, and no evaluation."""

    def examine(self, train: TrainFunction) -> None:
        """Run `train` until all rounds are over.

        Raises what `train` raises, and `BadJob` if it returns earlier or never asks for batches.
        """
        try:
            self.run(train)
        finally:
            self._examination.close()
        if not self._has_loader:
            raise BadJob(
                "the train function returned without worker.loader(), so no step can be measured. Let it train on "
                "the batches of worker.loader(), or call fb.fit."
            )
        if not self._examination.is_over:
            steps = self._examination.num_steps
            raise BadJob(
                f"the train function ended by itself after {steps} batches, before all rounds were over. Let it train "
                "on all batches of worker.loader(): an examination ends them. Or give less time: --seconds 10.",
                steps=steps,
            )


class UnheardReporter:
    """`Reporter` without a driver."""

    def report(self, *events: Event) -> None:
        """Do nothing."""

    def request(self) -> Request:
        """No request."""
        return Request()

    def synced_request(self) -> Request:
        """No request."""
        return Request()

    def knows(self, report: EpochEnded | Evaluated) -> bool:  # noqa: ARG002
        """Nobody waits for reports."""
        return True


class NoCheckpoints:
    """`CheckpointStore` that keeps nothing.

    The run begins from scratch.
    """

    def reserve(self, num_bytes: int) -> None:
        """Make nothing."""

    def reserve_part(self, number: int, num_bytes: int) -> None:
        """Make nothing."""

    def raise_failed(self, *, wait: bool = False) -> None:
        """Do nothing: no write can fail."""

    def save(self, checkpoint: Checkpoint, parts: Sequence[PartReceipt] = ()) -> None:
        """Save nothing."""

    def save_part(self, step: int, number: int, chunks: Mapping[str, LocalChunk]) -> PartReceipt:  # noqa: ARG002 - as in the protocol
        """Not called: a single rank saves no parts."""
        raise AssertionError

    def read_part(self, step: int, part: PartFacts) -> Iterable[ReadBytes]:  # noqa: ARG002 - as in the protocol
        """Not called: an examination starts without a checkpoint."""
        raise AssertionError

    def newest(self, shards: Collection[int] | None = None, *, before: int | None = None) -> Checkpoint | None:  # noqa: ARG002 - as in the protocol
        """No checkpoint."""
        return None

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
