"""The bench of fine-tuning on a GPU, with its tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def test_each_way_has_a_row(bench: Callable[[str], ModuleType]) -> None:
    speed = bench("device.llm_speed")
    line = {"name": "full", "mfu": 0.3, "estimate": 2**31, "tokens_s": 51234.5, "first_step_s": 9.87, "peak": 2**30}
    rows = [speed.row(line | {"loss": 1.0}, 10**9), speed.row({"name": "qlora", "failed": "no GPU"}, 10**9)]
    assert all(len(each) == len(speed.HEAD) for each in rows)
    assert rows[0][:3] == ("full", "51,234", "0.300") and rows[1][0] == "qlora: no GPU"
    assert speed.measured(lambda: 1 / 0, is_late=False)["failed"].startswith("ZeroDivisionError")
    assert len({each.name for each in speed.WAYS}) == len(speed.WAYS)


@pytest.mark.variation("a training of two systems")
def test_both_systems_train_on_the_same_rows(
    bench: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    speed = bench("device.llm_speed")
    speed.write_model(tmp_path)
    rows = speed.packed_rows()
    assert rows.shape == (speed.STEPS * speed.ROWS, speed.SEQ_LEN)
    ours = speed.forebay_way(speed.way("lora", speed.LORA), tmp_path, rows)
    theirs = speed.trainer_way(tmp_path, rows, is_packed=True)
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=0.05)
