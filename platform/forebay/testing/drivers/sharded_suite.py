"""Laws of drivers whose ranks can train with strategy="fsdp2", as tests."""

from __future__ import annotations

from pathlib import Path

from forebay.checkpoint.config import CheckpointConfig
from forebay.checkpoint.files import CheckpointFiles, part_file
from forebay.events import Failed
from forebay.job.elastic import Elastic
from forebay.testing.drivers.bench import DriverBench
from forebay.testing.drivers.fixed_suite import Heard, assert_same_model
from forebay.testing.drivers.script import Cue, resize
from forebay.testing.drivers.suite import DriverSuite, changes, kill_members, no_act

CLOSE = 1e-5


class ShardedSuite(DriverSuite):
    """Laws of sharded training and of checkpoints in parts, beside those of `DriverSuite`."""

    def test_sharded_run_follows_the_world_and_outlives_a_worker(self, bench: DriverBench) -> None:
        cues = [
            Cue(workers=2, act=resize(1)),
            Cue(workers=1, act=resize(3)),
            Cue(workers=3, act=lambda _: kill_members(bench, "sharded", [1]), loses_workers=True),
            Cue(workers=3, act=no_act),
        ]
        elastic = Elastic(min_workers=1, max_workers=3, start=2)
        result, heard = self.follow(bench, "sharded", elastic, cues, strategy="fsdp2", max_failures=3)
        assert changes(heard)[:2] == [(2, 1), (1, 3)], "survivors may train on before they are three again"
        assert 1 <= result.failures == len([event for event in heard if isinstance(event, Failed)])
        bench.assert_like_undisturbed(result, tolerance=CLOSE)

    def test_strategy_may_change_between_runs_of_one_name(self, bench: DriverBench) -> None:
        for epochs, strategy in enumerate(("ddp", "fsdp2", "ddp"), 1):
            result = self.run(bench, "switched", epochs=epochs, strategy=strategy)
            assert result.is_finished
        assert bench.steps_redone("switched") == 0
        bench.assert_every_row_once(result)
        bench.assert_like_undisturbed(result, tolerance=CLOSE)

    def test_killed_or_damaged_sharded_run_repeats_every_bit(self, bench: DriverBench) -> None:
        """A worker is killed in the first epoch. Then a bit of a part of the newest checkpoint is flipped."""
        calm = self.run(bench, "calm-in-parts", strategy="fsdp2")
        heard = Heard()
        first = self.run(bench, "damaged", heard, strategy="fsdp2", epochs=1, at_step=5, event="kill")
        assert first.failures == len([event for event in heard if isinstance(event, Failed)]) == 1
        flip_bit_of_newest_part(Path(first.path) / "checkpoints")
        damaged = self.run(bench, "damaged", strategy="fsdp2")
        assert bench.steps_redone("damaged") > 0
        assert bench.rows("damaged") == bench.rows("calm-in-parts")
        assert_same_model(damaged, calm)


def flip_bit_of_newest_part(folder: Path) -> None:
    """Flip one bit of part 2 of the newest checkpoint in a local folder."""
    step = CheckpointFiles(CheckpointConfig(uri=str(folder))).complete_steps()[0]
    file = folder / f"step-{step:09d}" / part_file(2)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
