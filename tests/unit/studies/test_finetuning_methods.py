from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[3] / "studies"


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STUDIES)
        yield importlib.import_module("finetuning_methods")


def test_base_and_tuned_model_have_questions_of_their_own(study: ModuleType, tmp_path: Path) -> None:
    for kinds, others in ((study.BEFORE, study.AFTER), (study.AFTER, study.BEFORE)):
        asked = [
            each["content"]
            for messages in islice(study.chats_of(kinds, seed=3), 40)
            for each in messages
            if each["role"] == "user"
        ]
        assert len(asked) > 40 and all(each.startswith(kinds) and not each.startswith(others) for each in asked)
    files = study.write(tmp_path, "base", study.BEFORE, chats=6, held_out=2)
    assert [len(Path(files[part]).read_text().splitlines()) for part in ("data", "held_out")] == [6, 2]


def test_report_keeps_what_was_written_below_it(study: ModuleType, tmp_path: Path) -> None:
    facts = {"steps": [[1, 3.0], [2, 2.0]], "validation_loss": [1.5, 0.25], "exact_match": [0.1, 0.75]}
    runs = {method: {**facts, "checkpoint_bytes": 1_500_000} for method in study.METHODS}
    found = {"chats": 1600, "epochs": 2, "lora_r": 8, "runs": runs}
    study.write_report(found, tmp_path)
    document = tmp_path / "finetuning.md"
    assert "| LoRA | 0.005 | 0.250 | 0.750 | 1.50 MB |" in document.read_text()
    assert "1,600 conversations" in document.read_text()
    document.write_text(document.read_text() + "\n## Reading\nIt depends.\n")
    study.main(["--report", "--out", str(tmp_path)])
    assert document.read_text().endswith("\n## Reading\nIt depends.\n")
    assert json.loads((tmp_path / "finetuning.json").read_text()) == found
    assert (tmp_path / "finetuning.png").stat().st_size > 10_000


@pytest.mark.variation
def test_study_runs(study: ModuleType, tmp_path: Path) -> None:
    study.main(["--chats", "40", "--epochs", "1", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "finetuning.json").read_text())["runs"]
    assert list(runs) == ["full", "lora", "qlora"]
    assert runs["qlora"]["checkpoint_bytes"] < runs["full"]["checkpoint_bytes"]
