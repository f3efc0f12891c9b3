"""The bench of language models: what its probe counts and records, its figures, its chats, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

Bench = Callable[[str], ModuleType]
PAD = 0


@pytest.fixture
def probe(bench: Bench, tmp_path: Path) -> Iterator[Any]:
    paths = dict.fromkeys(("chats", "rows", "model", "work"), str(tmp_path))
    sizes = {"seq_len": 8, "step_rows": 2, "pass_rows": 1, "step_documents": 4, "pass_documents": 2}
    setting = bench("llm.setting").LlmSetting(**paths, **sizes, pad=PAD, steps=9, record=True)
    found = bench("llm.probe").Probe(setting, str(tmp_path / "answer"))
    yield found
    found.close()


def test_a_document_is_the_same_packed_or_padded(bench: Bench, probe: Any) -> None:
    digests = bench("llm.probe")._digests
    packed = digests([5, 6, 7, 8, 9, PAD], [0, 1, 2, 0, 1, 0], PAD)
    padded = digests([5, 6, 7, PAD], None, PAD) + digests([8, 9, PAD, PAD], None, PAD)
    assert packed == padded and len(set(packed)) == 2


def test_a_step_of_any_optimizer_reads_the_clocks(probe: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    probe.see(torch.tensor([[5, 6, PAD, PAD], [7, 8, 9, PAD]]))
    torch.optim.AdamW([weight]).step()
    (step,) = probe._steps
    assert (step["tokens"], step["slots"], len(step["documents"])) == (5, 8, 2)
    assert step["cpu_s"] > 0


def test_the_tail_of_the_heavy_chats(bench: Bench) -> None:
    data = bench("llm.data")
    rng = np.random.default_rng(0)
    turns = [data.turns_of("heavy", rng) for _ in range(2000)]
    assert set(turns) == {1, 19}
    assert 0.15 < data.padded_fill(turns, 16) < 0.25
    chat = next(data.chats_of("heavy", 1))
    assert [each["role"] for each in chat[:2]] == ["user", "assistant"]


def _prepared(tokens: int, own_cpu_s: float, children_cpu_s: float) -> dict[str, float]:
    return {"tokens": tokens, "own_cpu_s": own_cpu_s, "children_cpu_s": children_cpu_s, "wall_s": 1.0}


# Of 1,000 more tokens, one process makes 100 in a second. With two, the one that leads has 0.5 s of work.
PREPARED = {
    "small": {"1": _prepared(100, 3.0, 0.0), "2": _prepared(100, 3.0, 5.0)},
    "large": {"1": _prepared(1100, 13.0, 0.0), "2": _prepared(1100, 3.5, 15.1)},
}


def _turn(name: str, cpu_s: float, losses: dict[str, float], **options: Any) -> dict[str, Any]:
    steps = [{"cpu_s": 5 + cpu_s * number, "wall_s": 1.0, "tokens": 100, "slots": 200} for number in range(4)]
    return {"name": name, "kind": "usual", "round": 0, "steps": steps, "peak_bytes": 10**9, "losses": losses} | options


def test_figures_of_a_turn(bench: Bench) -> None:
    figures = bench("llm.figures")
    fast, slow = _turn("a", 1.0, {"0": 8.0, "2": 6.0, "4": 5.0}), _turn("b", 2.0, {"0": 8.0, "2": 7.0, "4": 6.5})
    assert figures.rate(fast) == 100 and figures.fill(fast) == 0.5
    assert figures.common_loss([fast, slow]) == 6.5
    assert figures.seconds_to(fast, 6.5, "cpu_s") == pytest.approx(1.5)
    assert figures.seconds_to(slow, 6.5, "cpu_s") == pytest.approx(8.0)
    assert figures.seconds_to(slow, 6.0, "cpu_s") is None
    assert figures.ratios([fast, slow], "a", "b") == [2.0]
    assert figures.preparation_rate(PREPARED, 1) == pytest.approx(100)
    assert figures.preparation_rate(PREPARED, 2) == pytest.approx(180, abs=2)


def test_report_has_every_part(bench: Bench) -> None:
    report, turn = bench("llm.report"), bench("llm.turn")
    losses = {"0": 8.0, "3": 6.0}
    fill = {"mean_tokens": 80.0, "padded_fill": 0.5, "fill": 0.99, "step_documents": 16}
    refused = {"equal": None, "error": "", "is_refused": True}
    document = {
        "machine": {"cpu": "c", "cores": 2, "memory_bytes": 1 << 30, "system": "s", "load_before": 0.5},
        "options": {"steps": 3, "chats": 10, "step_rows": 4, "seq_len": 8, "entries": 300},
        "data": {"usual": fill, "heavy": fill},
        "failed": {"axolotl": "no wheel"},
        "turns": [
            _turn(turn.FOREBAY.name, 1.0, losses),
            _turn(turn.ROWS.name, 2.0, losses),
            _turn(turn.FOREBAY.name, 1.0, losses, kind="heavy"),
            _turn(turn.PADDED.name, 1.2, losses, kind="heavy"),
            {"name": "other", "kind": "usual", "round": 0, "error": "no memory"},
        ],
        "second": [_turn(turn.FOREBAY.name, 1.0, losses)],
        "resume": {
            "x": {"with 1": {"equal": 1.0, "error": ""}, "with 2": {"equal": None, "error": "hung"}, "with 3": refused}
        },
        "preparation": PREPARED,
        "pieces": [{"load_before": 0.5}, {"load_before": 12.0}],
        "took_s": 600,
    }
    text = report.report(json.loads(json.dumps(document)))
    assert f"over {turn.ROWS.name} | >= 1 | 2.00 | met |" in text
    assert f"over {turn.PADDED.name}, heavy tail | >= 1.5 | 1.20 | **missed** |" in text
    assert f"over {turn.TORCHTUNE.name} | >= 1 | not measured |" in text
    assert "The run took 10 minutes, in 2 pieces; load average before each: 0.5, 12.0." in text
    assert (
        "| x | 100% equal | error | the global batch is not divisible |" in text and "- x, after a kill: hung" in text
    )
    assert "- other: no memory" in text and "- environment of axolotl: no wheel" in text
    assert "| preparation by 2 processes, over one | >= 1.6 | 1.80 | met |" in text
