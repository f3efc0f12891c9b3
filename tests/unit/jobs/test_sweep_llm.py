"""Trials of the language model sweep share files.

Token rows, blocks and the files of the base model.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import forebay as fb
from forebay import llm
from forebay.errors import InvalidOption
from forebay.testing.data.chats import write_chats

JOBS = Path(__file__).parents[3] / "jobs"
SMALL = {"chats": 60, "base_epochs": 1, "seq_len": 128, "global_batch": 8}
CONFIGS = [
    {"lr": lr, "lora_r": rank, "numbers_share": share}
    for lr, rank, share in ((1e-3, 4, 0.2), (3e-3, 8, 0.5), (1e-2, 16, 0.5), (3e-2, 4, 0.8))
]


@pytest.fixture
def sweep_llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(JOBS)  # as `forebay run` does
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("sweep_llm")


def folders(folder: Path) -> dict[str, str]:
    return {"cache": str(folder / "cache"), "storage": str(folder / "runs")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny, untrained model with its tokenizer.

    The tokenizer is of made-up conversations.
    """
    folder = tmp_path_factory.mktemp("made")
    chats = write_chats(folder, chats=60, held_out=2)
    reader = llm.TokenSource(str(chats.training), llm.tokenizer("tiny")).open()
    reader.tokenizer.save_pretrained(folder / "model")
    llm.ModelSpec(name="tiny", vocab_size=len(reader.tokenizer)).build().save_pretrained(folder / "model")
    return str(folder / "model")


def test_trials_prepare_nothing_and_have_the_same_blocks(
    sweep_llm: ModuleType, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model": model, "deadline": 60, "lora_targets": "q_proj,v_proj"}
    sweep: fb.Sweep = sweep_llm.sweep(**SMALL, **options, **folders(tmp_path))
    assert sweep.space.keys() == {"lr", "lora_r", "numbers_share"} and sweep.deadline_s == 60
    monkeypatch.setattr(llm.TokenSource, "open", lambda _: pytest.fail("a source was opened"))
    jobs = [sweep.job(**sweep.fixed, **config) for config in CONFIGS]
    names = {tuple(dataset.fingerprint for dataset in job.data.datasets) for job in jobs}
    assert len(names) == 1 and len(next(iter(names))) == 2
    assert len({job.data.plan.id for job in jobs}) == 3  # one per share
    assert all(job.identity["adapter"].endswith("targets=q_proj,v_proj") for job in jobs)
    assert {job.identity["model"] for job in jobs} == {jobs[0].identity["model"]}


def test_data_and_model_are_given_together(sweep_llm: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="Give model=, words=, numbers= and held_out= together"):
        sweep_llm.sweep(words="a.jsonl", **folders(tmp_path))


@pytest.mark.variation
def test_four_trials_read_each_file_of_tokens_once(sweep_llm: ModuleType, tmp_path: Path) -> None:
    sweep = sweep_llm.sweep(**SMALL, epochs=1, trials=4, name="mine", driver="local", **folders(tmp_path))
    result = fb.run_sweep(replace(sweep, max_concurrent=1))
    assert [trial.state for trial in result.record.trials.values()] == ["finished"] * 4
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("result.json") if "mine" in str(path)]
    assert len(runs) == 4
    opened = [sum(epoch["counters"].get("parquet_opens", 0) for epoch in run["epochs"]) for run in runs]
    # Training rows of both kinds, and held-out rows.
    assert sorted(opened) == [0, 0, 0, 3]
    assert len(list((tmp_path / "runs" / "prepared").iterdir())) == 4  # and the base model's


@pytest.mark.variation
def test_training_continues_from_an_export_with_other_data(sweep_llm: ModuleType, tmp_path: Path) -> None:
    """Train on text, then on conversations.

    The second run has the model and the tokenizer of the first run.
    """
    text = tmp_path / "text.jsonl"
    words, numbers, _ = sweep_llm.made_up(tmp_path / "made", 400, 0)
    texts = (
        message["content"] for line in Path(words).read_text().splitlines() for message in json.loads(line)["messages"]
    )
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    options: dict[str, Any] = {
        "workers": 1,
        "seq_len": 128,
        "global_batch": 8,
        "per_device_batch": 8,
        **folders(tmp_path),
    }
    finetune = importlib.import_module("finetune_llm").job
    first = fb.run(finetune(data=str(text), epochs=2, lr=4e-3, name="text", **options), driver="local")
    folder = llm.export("text", str(tmp_path / "exported"), storage=str(tmp_path / "runs")).folder
    second = finetune(model=folder, template="chatml", data=numbers, epochs=2, lr=4e-3, name="chats", **options)
    tuned = fb.run(second, driver="local")
    scratch = fb.run(finetune(data=numbers, epochs=2, lr=4e-3, name="scratch", **options), driver="local")
    assert first.metrics["loss"] < 6
    # The first loss of the second run is below an untrained model's.
    assert tuned.steps[0].metrics["loss"] < scratch.steps[0].metrics["loss"] - 0.3
