from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[3] / "studies"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STUDIES)
        yield importlib.import_module("llm_memory")


def test_larger_passes_share_the_gathers_and_offload_has_its_price(study: ModuleType) -> None:
    def rate(rows: int, *, is_offloaded: bool) -> float:
        return rows / float(study.step_s(70 * 10**9, 32, rows, is_offloaded=is_offloaded))

    assert rate(1, is_offloaded=True) < rate(1, is_offloaded=False) < rate(2, is_offloaded=True)


def test_report_keeps_what_was_written_below_it(study: ModuleType, tmp_path: Path) -> None:
    facts = {"bytes": 53_200_000_000, "host": 0, "rows": 2, "tokens_per_s": 180.4}
    found = {
        "kept": {name: [10**9 * length for length in study.LENGTHS] for name in study.ATTENTION},
        "attention_s": {attn: [0.1] * len(study.TIMED) for attn in ("eager", "sdpa")},
        "zero3": {name: [facts] * len(study.RANKS) for name in study.OFFLOAD},
        "measured": {name: [1000.0] * len(study.PASSES) for name in study.OFFLOAD},
    }
    study.write_report(found, tmp_path)
    document = tmp_path / "llm-memory.md"
    assert "| ZeRO-3 | 32 | 53.2 | 0.0 | 2 | 180 |" in document.read_text()
    document.write_text(document.read_text() + "\n## Reading\nIt depends.\n")
    study.main(["--report", "--out", str(tmp_path)])
    assert document.read_text().endswith("\n## Reading\nIt depends.\n")
    assert json.loads((tmp_path / "llm-memory.json").read_text()) == found
    assert (tmp_path / "llm-memory.png").stat().st_size > 10_000


@pytest.mark.variation("minutes of counting, and processes that import deepspeed")
@pytest.mark.timeout(900)
def test_study_runs(study: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    study.main(["--out", str(tmp_path)])
    found = json.loads((tmp_path / "llm-memory.json").read_text())
    alone, offloaded = found["zero3"].values()
    assert all(less["bytes"] < more["bytes"] for less, more in zip(offloaded, alone, strict=True))
    assert all(eager > fused for eager, fused, _ in zip(*found["kept"].values(), strict=True))
