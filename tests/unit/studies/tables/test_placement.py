from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from studies.tables.placement import NAME, cases, chosen, main, ratio


def test_cases_repeat_and_differ() -> None:
    found = cases(3, 9)
    assert found == cases(3, 9)
    assert {each.ways[0] for each in found} == {"rows", "replicate", "one owner"}
    assert all(6 <= each.steps * each.turns <= 60 for each in found)


def test_page_has_the_choice_beside_the_fastest_placement(tmp_path: Path) -> None:
    setting = asdict(cases(1, 1)[0]) | {"rows": 1_000_000, "dim": 16, "workers": 2, "mbit": 100}
    seconds = {"rows": 0.012, "replicate": 0.9, "table": 0.010}
    case = {"setting": setting, "unique": 500.0, "seconds": seconds, "sent_bytes": seconds, "cpu_s": seconds}
    assert chosen(case) == "rows" and round(ratio(case), 2) == 1.2
    small = case | {"setting": setting | {"rows": 100}, "seconds": seconds | {"replicate": 0.005}}
    found = {"machine": {"cpu": "x", "cores": 2, "load_before": 0.0}, "seed": 1, "cases": [case, small]}
    (tmp_path / f"{NAME}.json").write_text(json.dumps(found))
    main(["--report", "--out", str(tmp_path)])
    page = (tmp_path / f"{NAME}.md").read_text()
    assert "or within 10 % of it, in 1 of 2 cases" in page
    assert "| 500 | 12.0 | 900.0 | 10.0 | rows | 1.20 |" in page
