"""A case that ends its process, hangs or fails is detected and reported with the command that repeats it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TARGET = """
import os, time
class Target:
    def __init__(self, folder):
        pass
    def run(self, rng):
        {body}
        return "damage", "outcome"
"""


@pytest.fixture
def campaign_of(fuzz_module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """`run(body) -> Campaign` of three cases of a target with that body."""

    def run(body: str) -> object:
        mutants = tmp_path / "mutants"
        mutants.mkdir()
        main = (fuzz_module.MUTANTS / "main.py").read_text()
        (mutants / "main.py").write_text(main.replace("TARGETS = {", 'TARGETS = {"fake": "fake:Target", '))
        (mutants / "fake.py").write_text(TARGET.format(body=body))
        monkeypatch.setattr(fuzz_module, "MUTANTS", mutants)
        campaign = fuzz_module.Campaign("fake", tmp_path / "work", 7)
        campaign.run(3)
        return campaign

    return run


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("os.abort()", "SIGABRT"),
        ("os._exit(3)", "exit 3"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("time.sleep(60)", "hung"),
        ("bytearray(os.urandom(1 << 20) * 700)", " MiB"),
        ("bytearray(1 << 40)", "MemoryError"),
    ],
)
def test_each_way_to_go_wrong_is_told(
    campaign_of: Callable[[str], object], fuzz_module: object, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    if told == "hung":
        monkeypatch.setattr(fuzz_module, "SILENCE_S", 5.0)
    campaign = campaign_of(f"if rng.integers(3) >= 0 and not os.path.exists('done'): open('done', 'w'); {body}")
    assert len(campaign.faults) == 1, campaign.faults
    assert campaign.faults[0].startswith("seed 7, case 0: ") and told in campaign.faults[0]
    assert "main.py fake" in campaign.faults[0] and campaign.faults[0].endswith(" 7 0 1")
    assert campaign.outcomes == {("damage", "outcome"): 2}, "it went on after that case"


def test_a_target_that_does_not_load_is_told(campaign_of: Callable[[str], object]) -> None:
    campaign = campaign_of("]")
    assert len(campaign.faults) == 1 and "SyntaxError" in campaign.faults[0]


def test_a_case_is_the_same_each_time(fuzz: Callable[..., object]) -> None:
    first, again = (fuzz("parquet", 30, seed=3).outcomes for _ in range(2))
    assert first == again
