from __future__ import annotations

import json
from pathlib import Path

from studies.embedding_links import NAME, TITLES, main


def test_page_compares_each_way_with_rows(tmp_path: Path) -> None:
    def way(seconds: float) -> dict[str, dict[str, float]]:
        figures = {"seconds": seconds, "cpu_s": 0.02, "sent_bytes": 2e6, "busiest_bytes": 2e6, "ranks": 4}
        return {"slow": figures, "free": {**figures, "seconds": 0.01}}

    ways = {name: way(0.25 * (number + 1)) for number, name in enumerate(reversed(TITLES))}
    found = {"machine": {"cpu": "x", "cores": 2, "load_before": 0.0}, "rows": 2_000_000, "ways": ways}
    (tmp_path / f"{NAME}.json").write_text(json.dumps(found))
    main(["--report", "--out", str(tmp_path)])
    document = tmp_path / f"{NAME}.md"
    assert "| dense gradients, DDP | 4 | 1.250 | 2.5x | 0.010 | 2.00 | 20 |" in document.read_text()
    document.write_text(document.read_text() + "\n## Reading\nIt depends.\n")
    main(["--report", "--out", str(tmp_path)])
    assert document.read_text().endswith("It depends.\n")
    assert json.loads((tmp_path / f"{NAME}.json").read_text()) == found
    assert (tmp_path / f"{NAME}.png").stat().st_size > 10_000
