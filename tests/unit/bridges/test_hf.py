"""The Trainer of Hugging Face on a loader: its checkpoints continue in mid-epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay as fb
from forebay.errors import InvalidOption

transformers = pytest.importorskip("transformers")
STOP_AFTER = 8
"""Steps of the first run, in the first of two epochs of 12 steps."""


class Linear(torch.nn.Module):
    """A model that notes the rows it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(sorted(batch["id"].tolist()))
        return {"loss": (self.layer(batch["x"] / 400)[:, 0] - batch["labels"]).square().mean()}


@cache
def loader_trainer() -> Any:
    """Class as users write it. Its base takes 4 CPU seconds to import, in the one process that runs these tests."""

    class LoaderTrainer(fb.bridges.hf.TrainerMixin, transformers.Trainer):
        pass

    return LoaderTrainer


def trainer(folder: Path, loader: fb.Loader, **options: Any) -> tuple[Any, Linear]:
    given: dict[str, Any] = {
        "num_train_epochs": 2,
        "save_steps": 4,
        "ignore_data_skip": True,
        "use_cpu": True,
        "report_to": "none",
    }
    given |= {"lr_scheduler_type": "constant"}
    args = transformers.TrainingArguments(str(folder), disable_tqdm=True, logging_strategy="no", **(given | options))
    torch.manual_seed(0)
    model = Linear()
    return loader_trainer()(model, args, train_loader=loader), model


@pytest.mark.parametrize("accumulation", [2, pytest.param(1, marks=pytest.mark.variation("steps of one batch"))])
def test_a_checkpoint_continues_in_mid_epoch(
    open_loader: Callable[..., fb.Loader], calm_ids: list[list[int]], tmp_path: Path, accumulation: int
) -> None:
    options = {"gradient_accumulation_steps": accumulation, "save_steps": 4 // accumulation}
    with open_loader() as loader:
        calm, model = trainer(tmp_path / "calm", loader, **options)
        calm.train()
        assert model.seen == calm_ids
    with open_loader() as loader:
        stopped, model = trainer(tmp_path / "run", loader, max_steps=STOP_AFTER // accumulation, **options)
        stopped.train()
        assert model.seen == calm_ids[:STOP_AFTER]
    with open_loader() as loader:
        resumed, model = trainer(tmp_path / "run", loader, **options)
        resumed.train(resume_from_checkpoint=True)
    assert model.seen == calm_ids[STOP_AFTER:]
    assert resumed.state.global_step == calm.state.global_step
    assert torch.equal(resumed.model.layer.weight, calm.model.layer.weight)


def test_another_world_continues_from_the_trainers_folder(
    open_loader: Callable[..., fb.Loader], calm_ids: list[list[int]], tmp_path: Path
) -> None:
    with open_loader() as loader:
        trainer(tmp_path, loader, max_steps=STOP_AFTER)[0].train()
    states = json.loads((tmp_path / f"checkpoint-{STOP_AFTER}" / "trainer_state.json").read_text())
    cursor = fb.Cursor.from_dict(states["stateful_callbacks"]["LoaderCursor"]["attributes"]["cursor"])
    parts = []
    for rank in range(2):
        with open_loader(rank, 2) as loader:
            loader.seek(cursor)
            parts.append([batch["id"].tolist() for batch in loader])
    assert [sorted([*left, *right]) for left, right in zip(*parts, strict=True)] == calm_ids[STOP_AFTER:12]


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ((0, 1), {"ignore_data_skip": False}, "ignore_data_skip=True"),
        ((1, 2), {}, "rank 1 of 2, but this process is rank 0 of 1"),
        ((0, 1), {"gradient_accumulation_steps": 5}, "does not divide the 12 batches"),
    ],
)
def test_what_would_change_the_steps_is_refused(
    open_loader: Callable[..., fb.Loader],
    tmp_path: Path,
    place: tuple[int, int],
    options: dict[str, Any],
    said: str,
) -> None:
    with open_loader(*place) as loader, pytest.raises(InvalidOption, match=said):
        trainer(tmp_path, loader, **options)


@pytest.mark.parametrize("options", [{}, pytest.param({"max_steps": 6}, marks=pytest.mark.variation("by steps"))])
def test_the_speed_counts_rows(open_loader: Callable[..., fb.Loader], tmp_path: Path, options: dict[str, int]) -> None:
    with open_loader() as loader:
        found = (
            trainer(tmp_path, loader, gradient_accumulation_steps=2, save_strategy="no", **options)[0].train().metrics
        )
    assert found["train_samples_per_second"] / found["train_steps_per_second"] == pytest.approx(64, rel=0.02)


def test_steps_of_a_begun_epoch_are_whole(open_loader: Callable[..., fb.Loader], tmp_path: Path) -> None:
    with open_loader() as loader:
        next(iter(loader))
        begun = trainer(tmp_path, loader, gradient_accumulation_steps=2)[0]
        with pytest.raises(InvalidOption, match="11 batches left in the epoch"):
            begun.train()


def test_accelerate_saves_and_restores_the_cursor(
    open_loader: Callable[..., fb.Loader], calm_ids: list[list[int]], tmp_path: Path
) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with open_loader() as loader, open_loader() as other:
        dataset = fb.bridges.torch.as_dataset(loader)
        accelerator.register_for_checkpointing(dataset)
        batches = iter(torch.utils.data.DataLoader(dataset, batch_size=None))
        assert [sorted(next(batches)["id"].tolist()) for _ in range(3)] == calm_ids[:3]
        accelerator.save_state(str(tmp_path))
        del batches
        dataset.loader = other
        accelerator.load_state(str(tmp_path))
        assert [sorted(batch["id"].tolist()) for batch in dataset] == calm_ids[3:12]
