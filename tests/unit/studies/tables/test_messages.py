from __future__ import annotations

import json
from pathlib import Path

from studies.tables.messages import APART, GRADIENTS, NAME, TOGETHER, main, messages, ratios, setting_of


def test_each_way_begins_once() -> None:
    assert {setting_of(2, 4, turn).ways[0] for turn in range(3)} == {APART, GRADIENTS, TOGETHER}
    assert setting_of(4, 8, 0).columns == 8


def test_page_has_shares_of_the_way_without_joined_messages(tmp_path: Path) -> None:
    one = {"seconds": [0.02, 0.04, 0.03], "cpu_s": [0.01] * 3, "sent_bytes": 2e6, "sent_packets": 90.0}
    ways = {APART: one, GRADIENTS: one | {"seconds": [0.02] * 3}, TOGETHER: one | {"seconds": [0.01] * 3}}
    world = {"ranks": 2, "tables": 8, "ways": ways}
    assert ratios(world, TOGETHER, "seconds") == [0.5, 0.25, 0.01 / 0.03]
    found = {"machine": {"cpu": "x", "cores": 2, "load_before": 0.0}, "turns": 3, "worlds": [world]}
    (tmp_path / f"{NAME}.json").write_text(json.dumps(found))
    main(["--report", "--out", str(tmp_path)])
    page = (tmp_path / f"{NAME}.md").read_text()
    assert f"| 2 | 8 | {TOGETHER} | 4 | 90 | 2,000 | 10.00 | 0.33 (0.25-0.50) |" in page
    assert [messages(way, 8) for way in (APART, GRADIENTS, TOGETHER)] == [32, 25, 4]
