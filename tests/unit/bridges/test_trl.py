"""TRL's trainer on a loader: its checkpoints continue in mid-epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay as fb

TOKENS = 16


@pytest.mark.variation("a subclass of the Trainer of Hugging Face")
def test_a_fine_tune_continues_in_mid_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    datasets, tokenizers, transformers = (
        pytest.importorskip(name) for name in ("datasets", "tokenizers", "transformers")
    )
    tokens = [[1 + (row + place) % 60 for place in range(TOKENS)] for row in range(128)]
    columns = {"input_ids": tokens, "labels": tokens, "attention_mask": [[1] * TOKENS] * 128}
    (tmp_path / "tokens").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "tokens" / "a.parquet", row_group_size=32)
    transform = fb.Transform(**{name: fb.Ragged(name, max_len=TOKENS) for name in columns})
    plan = fb.build_plan(fb.scan(str(tmp_path / "tokens")), seed=7)
    seen: list[list[list[int]]] = []

    class NotedTrainer(fb.bridges.hf.TrainerMixin, trl.SFTTrainer):  # type: ignore[misc, name-defined]
        def training_step(self, model: Any, inputs: fb.Batch, *rest: Any, **options: Any) -> Any:
            seen.append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, *rest, **options)

    words = tokenizers.models.WordLevel({str(each): each for each in range(64)}, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), pad_token="0", eos_token="1"
    )
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, **shape)

    def fit(folder: str, steps: int, *, resume: bool = False) -> torch.Tensor:
        args = trl.SFTConfig(
            str(tmp_path / folder),
            max_steps=steps,
            save_steps=3,
            lr_scheduler_type="constant",
            ignore_data_skip=True,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
        sample = datasets.Dataset.from_list([{"input_ids": [1], "labels": [1]}])
        with fb.Loader(plan, transform, global_batch=16, last="drop") as loader:
            trainer = NotedTrainer(model, args, train_dataset=sample, processing_class=tokenizer, train_loader=loader)
            trainer.train(resume_from_checkpoint=resume)
        return trainer.model.lm_head.weight

    calm = fit("calm", 6)
    fit("run", 3)
    assert torch.equal(fit("run", 6, resume=True), calm)
    assert seen[:6] == seen[6:] and len(seen) == 12
