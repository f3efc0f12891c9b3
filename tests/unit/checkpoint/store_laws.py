"""What every `CheckpointStore` must do, whatever is behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from typing import Any

import pytest
import torch

from forebay.checkpoint.checkpoint import Checkpoint, CheckpointStore
from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.encoded import STATE
from forebay.checkpoint.files import CheckpointFiles
from forebay.errors import BadJob
from forebay.plan.cursor import Cursor
from forebay.world import World


def commit_at(step: int, **state: Any) -> Checkpoint:
    cursor = Cursor(plan_id="9c02", epoch=1, position=10 * step, global_batch=10)
    weight = torch.arange(8.0) + step
    return Checkpoint(step=step, cursor=cursor, world=World(rank=0, size=2), state={"weight": weight, **state})


def newest_step(commits: CheckpointStore) -> int | None:
    found = commits.newest()
    return None if found is None else found.step


class CommitsLaws(ABC):
    """Subclass it with the fixture `safekeeping`, and `open`: the commits of that run as another process sees them."""

    @abstractmethod
    def open(self, safekeeping: CheckpointConfig) -> CheckpointStore: ...

    def test_nothing_saved_is_none(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            assert commits.newest() is None
            commits.flush()

    def test_another_process_finds_the_newest_bit_for_bit(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits, closing(self.open(safekeeping)) as other:
            for step in (1, 2, 120):
                saved = commit_at(step, rng=[(3, None, "MT19937")], facts={"loss": 0.5})
                commits.save(saved)
                found = other.newest()
                assert found is not None
                assert (found.step, found.cursor, found.world) == (saved.step, saved.cursor, saved.world)
                assert torch.equal(found.state["weight"], saved.state["weight"])
                assert found.state["rng"] == [(3, None, "MT19937")]

    def test_what_was_saved_or_found_is_a_copy(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            weight = torch.zeros(1000)
            commits.save(commit_at(1, large=weight))
            weight += 1
            found = commits.newest()
            assert found is not None
            for step in (2, 3, 4):
                commits.save(commit_at(step, large=weight * step))
            assert torch.equal(found.state["large"], torch.zeros(1000)), "a later commit changed what was restored"

    def test_a_larger_state_and_a_smaller_one(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            for step, size in enumerate([10, 600_000, 1, 1_200_000, 20], 1):
                commits.save(commit_at(step, large=torch.full((size,), float(step))))
                found = commits.newest()
                assert found is not None and torch.equal(found.state["large"], torch.full((size,), float(step)))

    def test_going_back_gives_up_the_later_steps(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            for step in (100, 200, 300):
                commits.save(commit_at(step))
            commits.flush()
            commits.save(commit_at(250, note="again"))
            assert newest_step(commits) == 250
            commits.flush()
            assert max(CheckpointFiles(safekeeping).steps()) == 250
        with closing(self.open(safekeeping)) as commits:
            found = commits.newest()
            assert found is not None and found.state["note"] == "again"

    def test_the_same_step_again_replaces_it(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            for note in ("first", "second"):
                commits.save(commit_at(7, note=note))
                commits.flush()
            found = commits.newest()
            assert found is not None and found.state["note"] == "second"
        stored = CheckpointFiles(safekeeping).read(7)
        stored.check()

    def test_after_a_flush_storage_has_it(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            for step in range(1, 8):
                commits.save(commit_at(step))
                if step % 3 == 0:
                    commits.flush()
                    assert CheckpointFiles(safekeeping).steps()[0] == step
                    CheckpointFiles(safekeeping).read(step).check()

    def test_storage_keeps_the_last_and_the_multiples(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            for step in range(1, 14):
                commits.save(commit_at(step))
            commits.flush()
        steps = CheckpointFiles(safekeeping).steps()
        assert {5, 10, 13} <= set(steps), "the multiples of keep_every and the newest"
        assert len(set(steps) - {5, 10}) <= 2

    def test_a_torn_upload_is_never_restored(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            commits.save(commit_at(1))
            commits.flush()
        files = CheckpointFiles(safekeeping)
        files._fs.create_dir(files._folder(9), recursive=True)
        files._write(f"{files._folder(9)}/{STATE}", b"cut short")
        with closing(self.open(safekeeping)) as commits:
            assert newest_step(commits) == 1

    def test_a_state_that_could_not_be_read_back_is_refused(self, safekeeping: CheckpointConfig) -> None:
        with closing(self.open(safekeeping)) as commits:
            commits.save(commit_at(1))
            with pytest.raises(BadJob, match="strange is a type"):
                commits.save(commit_at(2, strange=object))
            assert newest_step(commits) == 1
