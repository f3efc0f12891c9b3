"""Laws of fine-tuning under every driver, as tests.

No strategy, death or change of the world changes its losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from tests.language.bench import LanguageBench

from forebay.events import Event, Failed, Reported
from forebay.storage.filesystem import below
from forebay.testing.drivers.bench import newest_commit, weights
from forebay.testing.drivers.fixed_suite import WORKERS, Heard
from forebay.testing.drivers.process import DriverProcess
from forebay.testing.drivers.script import Cue, Script, resize
from forebay.testing.drivers.sharded_suite import ShardedSuite, damage_newest_part, needs_deepspeed, options_of
from forebay.testing.drivers.suite import changes, no_act
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.job.elastic import Elastic
from forebay.training.runs.control import Callback, Control
from forebay.training.runs.result import Result
from forebay.training.state.snapshot import Snapshot

CLOSE = 1e-5
STEPS = 20
STEP_S = 0.2
ZERO = ("zero1", "zero2", "zero3", "zero3-optimizer")
LONG: Mapping[str, Any] = {"epochs": 40}
"""Options of a run that is stopped: rates follow from the number of epochs."""

in_each_strategy = pytest.mark.parametrize(
    "strategy", ["fsdp2", *(pytest.param(each, marks=[needs_deepspeed]) for each in ZERO)]
)
in_two_strategies = pytest.mark.parametrize("strategy", ["fsdp2", pytest.param("zero3", marks=[needs_deepspeed])])


class LanguageSuite(ShardedSuite):
    """Laws of fine-tuning, besides `ShardedSuite`.

    Runs train for at least 20 steps.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def tuned(cls, tmp_path_factory: pytest.TempPathFactory) -> LanguageBench:
        """Data, jobs and runs of the class."""
        return LanguageBench(tmp_path_factory.mktemp("language"))

    def calm_tuning(self, tuned: LanguageBench, strategy: str = "ddp", tuning: str = "full") -> Result:
        """Undisturbed run, trained once.

        Looked up by name from then on.
        """
        return self.run(tuned, f"calm-{strategy}-{tuning}", tuning=tuning, **options_of(strategy))

    @pytest.mark.parametrize("tuning", ["full", "lora", "qlora"])
    @in_each_strategy
    def test_strategies_have_equal_losses(self, tuned: LanguageBench, strategy: str, tuning: str) -> None:
        whole, split = self.calm_tuning(tuned, "ddp", tuning), self.calm_tuning(tuned, strategy, tuning)
        assert tuned.metrics(split.name).keys() == tuned.metrics(whole.name).keys() >= set(range(STEPS))
        assert_close(tuned, split, whole)
        sums = checksums(split)
        assert sums == checksums(whole)
        assert (
            sums.keys() == {"full": set(), "lora": {"frozen_base"}, "qlora": {"frozen_base", "frozen_weights"}}[tuning]
        )

    @in_two_strategies
    def test_killed_worker_and_damaged_parts_change_no_bit(self, tuned: LanguageBench, strategy: str) -> None:
        """Kill a worker, then damage checkpoints.

        First a flipped bit in the newest one, then a missing part.
        """
        calm = self.calm_tuning(tuned, strategy)
        name, heard, options = f"killed-{strategy}", Heard(), {"step_s": STEP_S, **options_of(strategy)}
        options |= {"at_step": random_step(name, 1, 9), "event": "kill"}
        first = self.run(tuned, name, heard, stop_after(10), **options)
        assert first.failures == len([event for event in heard if isinstance(event, Failed)]) == 1
        for stop_at, is_missing in ((14, False), (1 << 30, True)):
            redone = tuned.steps_redone(name)
            damage_newest_part(Path(first.path) / "checkpoints", is_missing=is_missing)
            result = self.run(tuned, name, stop_after(stop_at), **options)
            assert tuned.steps_redone(name) > redone, "a damaged checkpoint was restored"
        assert_same_bits(tuned, result, calm)

    @in_two_strategies
    def test_killed_driver_changes_no_bit(self, tuned: LanguageBench, strategy: str) -> None:
        calm = self.calm_tuning(tuned, strategy)
        name, options = f"orphaned-{strategy}", {"workers": WORKERS, **options_of(strategy)}
        at_step = random_step(name, 4, STEPS - 2)
        slow = {"step_s": STEP_S, "at_step": at_step + 1, "event": "hang"}  # It can still be killed there.
        DriverProcess(self.driver_path, tuned, name, self.environment(), **options, **slow).kill_at(at_step)
        result = self.take_over(tuned, name, **options)
        assert len({each.pid for each in tuned.attempts(name)}) >= 2 * WORKERS, "nothing was taken over"
        assert_same_bits(tuned, result, calm)

    @in_two_strategies
    def test_lost_node_changes_no_bit(self, tuned: LanguageBench, strategy: str) -> None:
        nodes = self.make_cluster()
        if nodes is None:
            pytest.skip("this driver has no nodes to lose")
        with closing(nodes):
            calm = self.calm_tuning(tuned, strategy)
            name, lost = f"left-{strategy}", list[str]()
            at_step = random_step(name, 4, STEPS - 4)

            def lose(event: Event, _control: Control) -> None:
                if isinstance(event, Reported) and not lost and tuned.attempts(name)[-1].step >= at_step:
                    lost.extend({each.node for each in tuned.members(name).values()} & set(nodes.others))
                    nodes.kill(lost[0])

            result = self.run(tuned, name, lose, max_failures=3, step_s=STEP_S, **options_of(strategy))
        assert lost
        assert result.failures >= 1
        assert_same_bits(tuned, result, calm)

    @in_each_strategy
    def test_change_of_the_world_changes_no_loss(self, tuned: LanguageBench, strategy: str) -> None:
        """2, 1, 3 and 4 workers in one run."""
        name, heard = f"resized-{strategy}", Heard()
        acts = ((2, resize(1)), (1, resize(3)), (3, resize(4)))
        end = Cue(workers=4, act=no_act, only_if=lambda: tuned.attempts(name)[-1].step >= STEPS)
        script = Script([*(Cue(workers=number, act=act) for number, act in acts), end])
        elastic = Elastic(min_workers=1, max_workers=4, start=2)
        options = {"workers": 1, "elastic": elastic, "step_s": STEP_S, **LONG, **options_of(strategy)}
        result = self.run(tuned, name, heard, script, **options)
        assert script.is_over
        assert changes(heard) == [(2, 1), (1, 3), (3, 4)]
        assert_close_alone(tuned, result)

    @needs_deepspeed
    def test_change_of_the_strategy_between_runs_changes_no_loss(self, tuned: LanguageBench) -> None:
        name, parts = "switched", (("zero3", 2, 8), ("fsdp2", 3, 14), ("ddp", 1, STEPS))
        for strategy, workers, stop_at in parts:
            options = {"workers": workers, "step_s": STEP_S, **LONG, **options_of(strategy)}
            result = self.run(tuned, name, stop_after(stop_at), **options)
        assert {each.size for each in tuned.attempts(name)} == {1, 2, 3}
        assert tuned.steps_redone(name) == 0
        assert_close_alone(tuned, result)

    def test_exact_reduction_has_the_same_bits_in_every_world(self, tuned: LanguageBench) -> None:
        options = {"reduction": "exact", "tuning": "lora"}
        alone, *others = [self.run(tuned, f"exact-{number}", workers=number, **options) for number in (1, 2, 3, 4)]
        for other in others:
            assert_same_weights(other, alone)
            assert [each.metrics["loss"] for each in other.epochs] == [each.metrics["loss"] for each in alone.epochs]
            assert tuned.norms(other.name) == tuned.norms(alone.name)


def random_step(name: str, first: int, end: int) -> int:
    """Step from `first` to `end - 1`, fixed by `name`."""
    return first + crc32(name.encode()) % (end - first)


def stop_after(step: int) -> Callback:
    """Callback that stops a run after `step` steps."""

    def stop(event: Event, control: Control) -> None:
        if isinstance(event, Reported) and event.step >= step:
            control.stop(f"{step} steps")

    return stop


def checksums(result: Result) -> Mapping[str, object]:
    """Checksums of frozen parameters in the newest checkpoint."""
    objects = Snapshot.from_checkpoint(newest_commit(result)).objects
    return {name: state for name, state in objects.items() if name.startswith("frozen")}


def assert_same_bits(tuned: LanguageBench, result: Result, calm: Result) -> None:
    """Assert that two runs are equal to the bit.

    Losses and gradient norms on each rank, and the model.
    """
    assert result.is_finished
    assert tuned.metrics(result.name) == tuned.metrics(calm.name)
    assert_same_weights(result, calm)


def assert_same_weights(result: Result, calm: Result) -> None:
    """Assert that the newest checkpoints have equal parameters."""
    ours, theirs = weights(result), weights(calm)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def assert_close(tuned: LanguageBench, result: Result, calm: Result) -> None:
    """Assert that two runs are equal within 1e-5.

    Losses and gradient norms of all steps. Prints the difference.
    """
    difference = tuned.difference(result.name, calm.name)
    print(f"{result.name} and {calm.name}: losses and gradient norms differ by {difference:.1e} at most")
    assert difference <= CLOSE


def assert_close_alone(tuned: LanguageBench, result: Result) -> None:
    """Assert that a stopped run equals one worker's.

    Losses, gradient norms and parameters, within 1e-5.
    """
    step = newest_commit(result).step
    name = f"alone-{step}"
    calm = LocalDriver().run(tuned.job(name, checkpoint_every=1, keep_every=1, **LONG), [stop_after(step)])
    assert step >= STEPS
    assert_close(tuned, result, calm)
    found = DirectoryStore(below(calm.path, "checkpoints")).newest(before=step + 1)
    assert found is not None
    assert found.step == step
    ours, theirs = weights(result), Snapshot.from_checkpoint(found).objects["model"]
    difference = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    print(f"{result.name}: parameters differ by {difference:.1e} at most after {step} steps")
    assert difference <= CLOSE
