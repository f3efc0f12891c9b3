"""Laws of drivers for sharded strategies, as tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from forebay.events import Failed
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.fixed_suite import Heard, assert_same_model
from forebay.testing.drivers.script import Cue, resize
from forebay.testing.drivers.suite import DriverSuite, changes, kill_members, no_act
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.names import part_file
from forebay.training.job.elastic import Elastic
from forebay.training.strategies.choice import INSTALL

CLOSE = 1e-5
ZERO = ("zero1", "zero2", "zero3", "zero1-optimizer", "zero2-optimizer", "zero3-optimizer")
"""Strategies of DeepSpeed, with what they offload."""

needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason=INSTALL)
in_each_strategy = pytest.mark.parametrize(
    "strategy", ["fsdp2", *(pytest.param(each, marks=[needs_deepspeed]) for each in ZERO)]
)
"""Law of each strategy that splits the model over ranks."""


def options_of(strategy: str) -> dict[str, str]:
    """Job options of a strategy, such as "zero3-optimizer"."""
    name, _, offload = strategy.partition("-")
    return {"strategy": name, "offload": offload or "none"}


class ShardedSuite(DriverSuite):
    """Laws of sharded training and checkpoints in parts.

    They hold beside `DriverSuite`'s.
    """

    @in_each_strategy
    def test_sharded_run_follows_the_world_and_outlives_a_worker(self, bench: DriverBench, strategy: str) -> None:
        name = f"followed-{strategy}"
        cues = [
            Cue(workers=2, act=resize(1)),
            Cue(workers=1, act=resize(3)),
            Cue(workers=3, act=lambda _: kill_members(bench, name, [1]), loses_workers=True),
            Cue(workers=3, act=no_act),
        ]
        elastic = Elastic(min_workers=1, max_workers=3, start=2)
        result, heard = self.follow(bench, name, elastic, cues, max_failures=3, **options_of(strategy))
        assert changes(heard)[:2] == [(2, 1), (1, 3)], "survivors may train on before they are three again"
        assert 1 <= result.failures == len([event for event in heard if isinstance(event, Failed)])
        bench.assert_like_undisturbed(result, tolerance=CLOSE)

    @in_each_strategy
    def test_strategy_may_change_between_runs_of_one_name(self, bench: DriverBench, strategy: str) -> None:
        name = f"switched-{strategy}"
        for epochs, used in enumerate(("ddp", strategy, "ddp"), 1):
            result = self.run(bench, name, epochs=epochs, **options_of(used))
            assert result.is_finished
        assert bench.steps_redone(name) == 0
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result, tolerance=CLOSE)

    @in_each_strategy
    def test_killed_or_damaged_sharded_run_repeats_every_bit(self, bench: DriverBench, strategy: str) -> None:
        """A worker is killed in the first epoch.

        Then a bit of a part of the newest checkpoint is flipped.
        """
        undisturbed, name, options = f"calm-{strategy}", f"damaged-{strategy}", options_of(strategy)
        calm, heard = self.run(bench, undisturbed, **options), Heard()
        first = self.run(bench, name, heard, epochs=1, at_step=5, event="kill", **options)
        assert first.failures == len([event for event in heard if isinstance(event, Failed)]) == 1
        damage_newest_part(Path(first.path) / "checkpoints")
        damaged = self.run(bench, name, **options)
        assert bench.steps_redone(name) > 0
        assert bench.rows(name) == bench.rows(undisturbed)
        assert_same_model(damaged, calm)


def damage_newest_part(folder: Path, *, is_missing: bool = False) -> None:
    """Damage part 2 of the newest local checkpoint.

    Flips one bit of the part, or removes it.
    """
    files = CheckpointFiles(CheckpointConfig(uri=str(folder)))
    damage_part(Path(files.uri_of(files.complete_steps()[0]), part_file(2)), is_missing=is_missing)


def damage_part(file: Path, *, is_missing: bool = False) -> None:
    """Flip one bit of a part, or remove it."""
    if is_missing:
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
