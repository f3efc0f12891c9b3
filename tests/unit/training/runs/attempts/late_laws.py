"""Laws of two attempts: nothing that the first writes after the claim of the second is restored, by any later one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.errors import Fenced
from forebay.storage.filesystem import below
from forebay.training.checkpoint.checkpoint import found_in
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, readable_checkpoints
from forebay.training.checkpoint.files.names import SavedStep
from forebay.training.checkpoint.uploader import Uploader
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.attempts.start import create_attempt


def encoded(step: int, content: bytes = b"state") -> EncodedCheckpoint:
    return EncodedCheckpoint.build({"step": step}, {0: content})


def claimed(run: str, number: int, **options: Any) -> CheckpointConfig:
    """Claim the next attempt. Returns the options of its checkpoints, as its driver has them."""
    assert create_attempt(run, number) is not None
    files = AttemptFiles(run)
    claim = files.claim(number)
    assert claim is not None
    pinned = None if claim.restorable is None else frozenset(claim.restorable)
    uri, after = below(run, "checkpoints"), files.claim_uri(number + 1)
    return CheckpointConfig(uri=uri, attempt=number, next_claim=after, restorable=pinned, **options)


def write_late(config: CheckpointConfig, step: int) -> None:
    """Write a checkpoint as a process that was suspended between its question for a later attempt and the write."""
    with pytest.raises(Fenced):
        CheckpointFiles(config).write(encoded(step))


def restored(config: CheckpointConfig) -> SavedStep | None:
    newest = max(found_in(CheckpointFiles(config)), default=None)
    return None if newest is None else SavedStep(newest.attempt, newest.step)


def read_by_others(run: str) -> list[int]:
    """Steps that an export or a fork sees."""
    return readable_checkpoints(run).complete_steps()


class LateWriteLaws:
    """Laws of a store with exclusive creation. `run` is the folder of a run that does not exist."""

    @pytest.fixture
    def run(self) -> str:
        raise NotImplementedError

    def test_what_is_written_after_the_claim_is_never_restored(self, run: str) -> None:
        first = claimed(run, 1, storage_every_s=1e6)
        uploader = Uploader(first)
        uploader.enqueue(encoded(20))
        uploader.flush()
        second = claimed(run, 2)
        uploader.enqueue(encoded(30))
        with pytest.raises(Fenced, match="a later attempt has taken over"):
            uploader.flush()
        uploader.close()
        assert CheckpointFiles(first).names() == [SavedStep(1, 20)], "a flush is refused, too"
        write_late(first, 40)
        write_late(first, 10)
        assert restored(second) == SavedStep(1, 20)
        assert read_by_others(run) == [20], "an export takes what the second attempt continues from"
        third = claimed(run, 3)
        assert restored(third) == SavedStep(1, 20)
        CheckpointFiles(third).write(encoded(25))
        assert CheckpointFiles(replace(third, restorable=None)).names() == [SavedStep(3, 25), SavedStep(1, 20)]
        write_late(second, 22)
        assert read_by_others(run) == [25, 20]
        assert restored(claimed(run, 4)) == SavedStep(3, 25)

    def test_first_attempt_without_a_checkpoint_leaves_nothing(self, run: str) -> None:
        first, second = claimed(run, 1), claimed(run, 2)
        write_late(first, 5)
        assert restored(second) is None
        assert read_by_others(run) == []

    def test_write_that_began_before_the_claim_is_not_restored(self, run: str) -> None:
        first = claimed(run, 1)
        CheckpointFiles(first).write(encoded(20))
        CheckpointFiles(first).write_part(30, 1, b"part")
        second = claimed(run, 2)
        write_late(first, 30)
        assert restored(second) == SavedStep(1, 20)

    def test_claim_that_lost_its_race_with_a_deletion_restores_the_one_after(self, run: str) -> None:
        """The first attempt wrote and deleted between the listing and the creation of the second."""
        first = claimed(run, 1, keep_last=1)
        for step in (20, 30):
            CheckpointFiles(first).write(encoded(step))
        second = replace(claimed(run, 2), restorable=frozenset({"step-000000020"}))
        CheckpointFiles(first).write_part(40, 1, b"part")
        assert restored(second) == SavedStep(1, 30)

    def test_fenced_write_deletes_nothing(self, run: str) -> None:
        first = claimed(run, 1, keep_last=1)
        CheckpointFiles(first).write(encoded(20))
        second = claimed(run, 2)
        write_late(first, 30)
        assert restored(second) == SavedStep(1, 20)
