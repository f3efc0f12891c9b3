from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies.tables.ahead import AHEAD_WAYS, BESIDE, INLINE, KNOWN, PHASES
from studies.tables.prefetch import NAME, main, ratio, settings_of, share_of_ids


def test_page_has_the_share_of_ids_and_what_a_prefetch_saves(tmp_path: Path) -> None:
    phases = {f"{phase} seconds": [0.002] * 4 for phase in PHASES}
    figures = {"seconds": [0.1, 0.3, 0.1, 0.3], "cpu_s": [0.05] * 4, "sent_bytes": [2e6] * 4, **phases}
    figures |= {"ids sent_bytes": [6e4] * 4}
    ways = dict.fromkeys(AHEAD_WAYS, figures) | {BESIDE: figures | {"seconds": [0.09, 0.5, 0.09, 0.5]}}
    world = {"workers": 2, "batch": 1024, "mbit": 100, "delay_ms": 1.0, "wire": "float32", "ways": ways}
    assert share_of_ids(world) == pytest.approx(0.06)
    assert ratio(world, BESIDE) == pytest.approx(0.9)
    assert ratio(world, KNOWN) == ratio(world, INLINE) == 1.0
    machine = {"cpu": "x", "cores": 2, "load_before": 0.0}
    (tmp_path / f"{NAME}.json").write_text(json.dumps({"machine": machine, "steps": 4, "worlds": [world]}))
    main(["--report", "--out", str(tmp_path)])
    row = "| 2 ranks, batch 1,024, float32, 100 Mbit/s, 1 ms | 100 | 50 | 2,000 | 60 | 0.060 | 0.90 | 1.00 |"
    assert row in (tmp_path / f"{NAME}.md").read_text()


def test_worlds_have_links_with_a_limit_and_without() -> None:
    assert {(each.workers, each.mbit) for each in settings_of(4)} == {(2, 0), (4, 0), (2, 100), (4, 100)}
