"""Fine-tuning beside the Trainer of transformers: same rows, same losses and gradient norms."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

import forebay as fb
from forebay import llm
from forebay.errors import BadJob, InvalidOption
from forebay.events import Event, Request
from forebay.testing.data.chats import write_chats
from forebay.testing.data.mixtures import mixture
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.collectives.collective import SingleProcessCollective
from forebay.training.state.metric import scalar
from forebay.training.state.rng import seed_everything
from forebay.training.state.snapshot import Snapshot
from forebay.training.worker.spec import TrainSpec
from forebay.training.worker.worker import Worker

SEQ_LEN, ROWS, STEPS = 64, 8, 20


class RecordingWorker(Worker):
    """Worker that keeps the metrics of each step."""

    steps: list[dict[str, float]]

    def commit(self, **metrics: Any) -> None:
        self.steps.append({name: float(scalar(name, value)) for name, value in metrics.items()})
        super().commit(**metrics)


class StepLog:
    """`Reporter` that keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def report(self, *events: Event) -> None:
        self.events += events

    def request(self) -> Request:
        return Request()

    def synced_request(self) -> Request:
        return Request()

    def knows(self, report: object) -> bool:
        return True


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> llm.PreparedTokens:
    folder = tmp_path_factory.mktemp("tokens")
    chats = write_chats(folder, chats=210, held_out=20)
    source = llm.TokenSource(str(chats.training), llm.tokenizer("tiny"), seq_len=SEQ_LEN, overflow="split")
    return llm.prepared_tokens(fb.prepare(source, into=str(folder / "into")))


@pytest.fixture
def make_data(prepared: llm.PreparedTokens) -> Callable[..., fb.Data]:
    def make(**options: Any) -> fb.Data:
        plan = fb.build_plan(prepared.prepared.manifest, **({"seed": 7, "lanes": 8} | options))
        return fb.Data(plan=plan, transform=llm.token_rows(), global_batch=ROWS, last="drop")

    return make


def recipe_of(prepared: llm.PreparedTokens, **options: Any) -> llm.Recipe:
    model = llm.ModelSpec(name="tiny", vocab_size=prepared.vocab_size)
    return llm.Recipe(model=model, **({"lr": 1e-3, "warmup": 3 / STEPS, "weight_decay": 0.01} | options))


def train(recipe: llm.Recipe, spec: TrainSpec, store: Path) -> tuple[RecordingWorker, StepLog]:
    log = StepLog()
    worker = RecordingWorker(spec, SingleProcessCollective(), None, DirectoryStore(str(store), keep_last=2), log)
    worker.steps = []
    worker.run(partial(llm.finetune, recipe))
    return worker, log


def steps_of_trainer(recipe: llm.Recipe, words: np.ndarray, seed: int, folder: Path) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step of transformers' own Trainer on the same rows in the same order."""
    seed_everything(seed)
    model = replace(recipe, model=replace(recipe.model, attn="sdpa")).build_model("cpu")
    rows = [
        {name: values[0] for name, values in llm.unpack(torch.from_numpy(row[None]))._asdict().items()} for row in words
    ]

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=recipe.per_device_batch,
        gradient_accumulation_steps=ROWS // recipe.per_device_batch,
        max_steps=STEPS,
        learning_rate=recipe.highest_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(recipe.warmup * STEPS),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        optim="adamw_torch",
    )

    def collate(some: list[Any]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([row[name] for row in some]) for name in some[0]}

    trainer = InOrder(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [(entry["loss"], float(entry["grad_norm"])) for entry in logged]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"per_device_batch": 4}, id="full, accumulated"),
        pytest.param({"per_device_batch": 8}, id="full", marks=pytest.mark.variation),
        pytest.param({"per_device_batch": 8, "adapter": llm.Lora(r=4, alpha=8)}, id="lora"),
        pytest.param(
            {"per_device_batch": 2, "adapter": llm.Lora(r=4, alpha=8)},
            id="lora, accumulated",
            marks=pytest.mark.variation,
        ),
    ],
)
def test_losses_and_gradients_are_those_of_the_trainer_of_transformers(
    prepared: llm.PreparedTokens,
    make_data: Callable[..., fb.Data],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    recipe, data = recipe_of(prepared, **options), make_data()
    assert data.num_batches >= STEPS
    # The other side ends after so many steps, and so does its schedule.
    monkeypatch.setattr(Worker, "progress", property(lambda worker: min(worker.step / STEPS, 1.0)))
    worker, _ = train(recipe, TrainSpec(data=data, seed=3), tmp_path / "ours")
    with fb.Loader(data, as_numpy=True) as loader:
        words = np.concatenate([batch["tokens"].copy() for batch, _ in zip(loader, range(STEPS), strict=False)])
    theirs = steps_of_trainer(recipe, words, 3, tmp_path / "theirs")
    assert len(theirs) == STEPS
    assert all(step["document_tokens_per_s"] <= step["tokens_per_s"] and step["mfu"] > 0 for step in worker.steps[1:])
    for step, (loss, norm) in zip(worker.steps, theirs, strict=False):
        assert step["loss"] == pytest.approx(loss, abs=1e-5)
        assert step["grad_norm"] == pytest.approx(norm, abs=1e-5)
    if recipe.adapter is not None:
        assert_adapter_only(recipe, tmp_path / "ours")
        with pytest.raises(BadJob, match=r"frozen_base .* are not those that the run started with"):
            train(recipe, TrainSpec(data=data, seed=4, epochs=2), tmp_path / "ours")


def assert_adapter_only(recipe: llm.Recipe, store: Path) -> None:
    """Assert that a checkpoint has the adapter and its moments, and less than 64 KiB beside them."""
    model = recipe.build_model("cpu")
    adapter = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = DirectoryStore(str(store)).newest()
    assert found is not None
    objects = Snapshot.from_checkpoint(found).objects
    assert objects["model"].keys() == adapter.keys()
    moments = [each for state in objects["optimizer"]["state"].values() for each in state.values() if each.dim()]
    values = sum(each.numel() for each in adapter.values())
    assert sum(each.numel() for each in moments) == 2 * values
    checkpoint = store / f"step-{found.step:09d}"
    num_bytes = sum(each.stat().st_size for each in checkpoint.iterdir())
    assert 3 * 4 * values <= num_bytes < 3 * 4 * values + (64 << 10)
    base = sum(4 * each.numel() for name, each in model.named_parameters() if name not in adapter)
    assert num_bytes < base / 2, "the base alone, without moments"


def test_bf16_has_the_losses_of_fp32(
    prepared: llm.PreparedTokens,
    make_data: Callable[..., fb.Data],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "forebay.llm")
    losses = []
    for dtype in ("fp32", "bf16"):
        recipe = recipe_of(prepared, per_device_batch=8, dtype=dtype)
        worker, _ = train(recipe, TrainSpec(data=make_data(), seed=3), tmp_path / dtype)
        losses.append(np.array([step["loss"] for step in worker.steps[:STEPS]]))
    exact, rounded = losses
    assert len(exact) == STEPS
    assert 0 < np.abs(rounded / exact - 1).max() < 2e-3
    said = caplog.text
    assert all(f"model tiny: {dtype} on cpu, gradient_checkpointing=false" in said for dtype in ("float32", "bfloat16"))


def test_a_job_evaluates_answers_prompts_and_ends_as_its_options_say(tmp_path: Path) -> None:
    chats = write_chats(tmp_path / "chats", chats=60, held_out=16)
    options: dict[str, Any] = {
        "data": str(chats.training),
        "held_out": str(chats.held_out),
        "seq_len": 96,
        "overflow": "drop",
        "global_batch": 8,
        "epochs": 4,
        "eval_every": 2,
        "workers": 1,
        "check_memory": False,
        "storage": str(tmp_path / "runs"),
        "cache": str(tmp_path / "cache"),
        "name": "mine",
        "samples": 2,
    }
    job = llm.job(llm.Options(**options, max_steps=5, patience=9))
    first = fb.run(job, driver="local")
    assert first.stopped == "max_steps=5"
    assert [each.step for each in first.evaluations] == sorted({0, 2, 4, 5, *(each.step for each in first.epochs)})
    assert all(len(each.samples) == 2 and each.samples[0].prompt for each in first.evaluations)
    assert first.evaluations[0].metrics.keys() == {"validation_loss", "exact_match"}
    assert first.best is not None
    assert first.best.metrics["validation_loss"] == min(each.metrics["validation_loss"] for each in first.evaluations)
    exported = llm.export("mine", str(tmp_path / "best"), storage=options["storage"], step="best")
    assert exported.step == first.best.step
    # A worse loss than that of the best step ends the run: the rate is far too high from here on.
    again = fb.run(llm.job(llm.Options(**options, lr=0.5, patience=1)), driver="local")
    assert again.stopped is not None
    assert again.stopped.startswith("validation_loss was not better in ")
    with pytest.raises(InvalidOption, match="patience=1 needs an evaluation, and there is no held-out data"):
        llm.job(llm.Options(data=str(chats.training), patience=1))


def test_columns_of_a_job_rename_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one two three"}\n' * 40)
    options: dict[str, Any] = {"data": str(tmp_path / "a.jsonl"), "storage": str(tmp_path), "seq_len": 16}
    with pytest.raises(InvalidOption, match=r"columns='\{\"text\": \"body\"\}' of a job"):
        llm.job(llm.Options(**options))
    job = llm.job(llm.Options(**options, columns={"text": "body"}, check_memory=False, global_batch=2))
    assert job.identity["columns"] == {"text": "body"}


class Reads(TorchDispatchMode):
    """Operators whose result the host needs: on a GPU each waits for all that was started there."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "repeat_interleave")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in {"index", "index_put", "index_put_"} and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        if name in self.WAITS or by_mask:
            self.found.append(f"{name}: {traceback.format_stack(limit=12)}")
        return func(*args, **(kwargs or {}))


class WatchedWorker(RecordingWorker):
    """Worker that watches its passes, behind the first step, in which layers are looked at once."""

    reads: Reads

    def backward(self, *args: Any, **options: Any) -> torch.Tensor:
        with self.reads if self.step else nullcontext():
            return super().backward(*args, **options)

    def clip_grad_norm(self, max_norm: float) -> torch.Tensor:
        with self.reads:
            return super().clip_grad_norm(max_norm)


@pytest.mark.parametrize("adapter", [None, llm.Lora(r=2, alpha=4)], ids=["full", "lora"])
@pytest.mark.parametrize("attn", ["sdpa", pytest.param("eager", marks=pytest.mark.variation)])
def test_no_pass_waits_for_the_device(
    prepared: llm.PreparedTokens, make_data: Callable[..., fb.Data], tmp_path: Path, attn: Any, adapter: Any
) -> None:
    model = llm.ModelSpec(name="tiny", vocab_size=prepared.vocab_size, attn=attn, gradient_checkpointing=True)
    recipe = llm.Recipe(model=model, adapter=adapter, per_device_batch=3, loss_chunk=50)
    data = replace(make_data(), global_batch=24)
    worker = WatchedWorker(
        TrainSpec(data=data, seed=3), SingleProcessCollective(), None, DirectoryStore(str(tmp_path)), StepLog()
    )
    worker.steps, worker.reads = [], Reads()
    worker.run(partial(llm.finetune, recipe))
    assert len(worker.steps) >= 2
    assert worker.reads.found == []


LORA = {"adapter": llm.Lora(r=8)}
QLORA = {"adapter": llm.Lora(r=8), "quantization": "nf4"}


@pytest.mark.variation("200 steps, several times")
@pytest.mark.parametrize(
    ("options", "most"),
    [
        pytest.param({"weights": "bf16"}, 0.02, id="full, bf16"),
        pytest.param({"weights": "float32", "dtype": "bf16"}, 0.02, id="full, computed in bf16"),
        pytest.param({"weights": "bf16", **LORA}, 0.02, id="lora, bf16"),
        pytest.param({"weights": "bf16", **QLORA}, 0.02, id="qlora, bf16"),
        pytest.param({"compile": True}, 1e-4, id="compiled"),
        pytest.param({"loss_chunk": 0}, 1e-4, id="all logits at once"),
    ],
)
def test_losses_of_200_steps_beside_float32(
    prepared: llm.PreparedTokens,
    make_data: Callable[..., fb.Data],
    tmp_path: Path,
    options: dict[str, Any],
    most: float,
) -> None:
    """The mean of the last 20 losses, and the largest difference of the mean of 20 steps."""
    curves = []
    model_options = {name: options[name] for name in ("quantization", "compile") if name in options}
    own = {name: value for name, value in options.items() if name not in model_options}
    plain = {"adapter": own.get("adapter"), "dtype": "fp32"}
    for number, given in enumerate((plain, own)):
        recipe = recipe_of(prepared, per_device_batch=8, **given)
        kept = model_options if number else {name: model_options[name] for name in model_options if name != "compile"}
        recipe = replace(recipe, model=replace(recipe.model, **kept))
        data = make_data()
        spec = TrainSpec(data=data, seed=3, epochs=-(-200 // data.num_batches))
        worker, _ = train(recipe, spec, tmp_path / str(number))
        curves.append(np.array([step["loss"] for step in worker.steps[:200]]).reshape(-1, 20).mean(axis=1))
    exact, other = curves
    worst = float(np.abs(other / exact - 1).max())
    assert len(exact) == 10 and exact[-1] < exact[0]
    assert worst < most, f"{options} last {exact[-1]:.4f} {other[-1]:.4f}"


@pytest.fixture
def mixture_folder(prepared: llm.PreparedTokens, tmp_path: Path) -> str:
    torch.manual_seed(2)
    config = mixture("qwen3_moe", vocab_size=prepared.vocab_size)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "mixture")
    return str(tmp_path / "mixture")


def test_router_loss_is_the_same_in_passes_of_any_size(
    prepared: llm.PreparedTokens, make_data: Callable[..., fb.Data], tmp_path: Path, mixture_folder: str
) -> None:
    model = llm.ModelSpec(name=mixture_folder, vocab_size=prepared.vocab_size)
    found = {}
    for rows, coefficient in ((8, 0.5), (2, 0.5), (8, 0.0)):
        recipe = replace(recipe_of(prepared, per_device_batch=rows, router_aux_loss_coef=coefficient), model=model)
        worker, _ = train(recipe, TrainSpec(data=make_data(), seed=3), tmp_path / f"{rows} {coefficient}")
        found[rows, coefficient] = worker.steps[:STEPS]
    for whole, parts in zip(found[8, 0.5], found[2, 0.5], strict=True):
        for name in ("loss", "router_loss", "grad_norm"):
            assert parts[name] == pytest.approx(whole[name], abs=1e-5)
    first, plain = found[8, 0.5][0], found[8, 0.0][0]
    assert "router_loss" not in plain
    assert first["loss"] == pytest.approx(plain["loss"] + 0.5 * first["router_loss"], abs=1e-5)
    # Each token goes to 2 experts: 2 is balanced.
    assert 2 < found[8, 0.5][-1]["router_loss"] < first["router_loss"] + 0.1


@pytest.mark.variation("processes")
@pytest.mark.parametrize(
    ("strategy", "adapter"),
    [("ddp", None), ("fsdp2", None), ("fsdp2", llm.Lora(r=4, targets="all-linear,experts,gate"))],
)
def test_mixtures_train_alike_on_one_rank_and_two(
    prepared: llm.PreparedTokens, tmp_path: Path, mixture_folder: str, strategy: Any, adapter: llm.Lora | None
) -> None:
    model = llm.ModelSpec(name=mixture_folder, vocab_size=prepared.vocab_size, gradient_checkpointing=True)
    recipe = recipe_of(prepared, adapter=adapter, per_device_batch=2, router_aux_loss_coef=0.1)
    recipe = replace(recipe, model=model)
    data = fb.Data(plan=fb.build_plan(prepared.prepared.manifest), transform=llm.token_rows(), global_batch=8)
    found = []
    for workers in (1, 2):
        job = fb.Job(
            train=partial(llm.finetune, recipe),
            data=data,
            workers=workers,
            strategy=strategy if workers > 1 else "ddp",
            storage=str(tmp_path / f"runs{workers}"),
            cache=None,
        )
        found.append(fb.run(job, driver="local").epochs[0].metrics)
    one, two = found
    for name in ("loss", "router_loss", "grad_norm"):
        assert two[name] == pytest.approx(one[name], rel=1e-5), name
