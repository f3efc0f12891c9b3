from __future__ import annotations

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forebay as fb
from forebay.data.transform.row_random import RowRandom
from forebay.errors import InvalidOption, MissingPackage

STOP_AFTER = 8


def test_lightning_is_named_when_it_is_missing(data: fb.Data) -> None:
    with pytest.raises(InvalidOption, match=r"give fb\.Data"):
        fb.bridges.lightning.data_module(data.plan)  # type: ignore[arg-type]
    if importlib.util.find_spec("lightning") is None:
        with pytest.raises(MissingPackage, match=r"pip install 'forebay\[lightning\]'"):
            fb.bridges.lightning.data_module(data)


def add_noise(batch: dict[str, Any], rng: RowRandom) -> dict[str, Any]:
    """Augment. A row with other noise after the resume would change the model."""
    return {**batch, "noise": rng.normal(size=2)}


def linear(fails_at: int | None = None) -> Any:
    """Model that notes the rows of its steps, and fails at one."""
    from lightning import LightningModule

    class LightningLinear(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.lr = 0.1
            self.seen: list[list[int]] = []
            self.validated: list[list[int]] = []

        def training_step(self, batch: fb.Batch, index: int) -> torch.Tensor:
            if len(self.seen) == fails_at:
                raise RuntimeError("the step failed")
            self.seen.append(sorted(batch["id"].tolist()))
            noise = batch.get("noise", 0)
            loss: torch.Tensor = (self.layer(batch["x"] / 400 + noise)[:, 0] - batch["labels"]).square().mean()
            return loss

        def on_validation_epoch_start(self) -> None:
            self.validated.append([])

        def validation_step(self, batch: fb.Batch, index: int) -> None:
            self.validated[-1] += batch["id"].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    torch.manual_seed(0)
    return LightningLinear()


def open_trainer(**options: Any) -> Any:
    from lightning import Trainer

    given = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(**given | options)


@pytest.mark.variation("the cursor in the checkpoints of another trainer")
@pytest.mark.parametrize("after", [1, 2])
def test_a_checkpoint_continues_in_mid_epoch(
    data: fb.Data, calm_ids: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.chdir(tmp_path)
    data = replace(data, augment=add_noise)
    pytest.importorskip("lightning")

    from lightning.pytorch.callbacks import ModelCheckpoint

    def fit(max_steps: int, checkpoint: str | None = None) -> Any:
        model = linear()
        saver = ModelCheckpoint(tmp_path, filename=f"{{step}}-of-{max_steps}", every_n_train_steps=4, save_top_k=-1)
        trainer = open_trainer(max_epochs=2, max_steps=max_steps, callbacks=[saver])
        trainer.fit(model, datamodule=fb.bridges.lightning.data_module(data), ckpt_path=checkpoint)
        return model

    last = str(tmp_path / f"step={STOP_AFTER}-of-{STOP_AFTER + 1}.ckpt")
    calm = fit(-1)
    assert calm.seen == calm_ids
    assert fit(STOP_AFTER + 1).seen == calm_ids[: STOP_AFTER + 1]
    if after == 1:
        resumed = fit(-1, last)
        assert resumed.seen == calm_ids[STOP_AFTER:]
        assert torch.equal(resumed.layer.weight, calm.layer.weight)
        return
    saved = torch.load(last, weights_only=True)["LoaderDataModule"]["cursor"]
    parts = []
    for rank in range(after):
        world = fb.World(rank=rank, size=after)
        with fb.Loader(data, world=world) as loader:
            loader.load_state_dict(saved)
            parts.append([batch["id"].tolist() for batch in loader])
    assert [sorted([*left, *right]) for left, right in zip(*parts, strict=True)] == calm_ids[STOP_AFTER:12]


def test_every_validation_has_all_rows(data: fb.Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one after the sanity check, which takes two batches of them."""
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    model = linear()
    held_out = replace(data, plan=fb.build_plan(data.plan.manifests[0], lanes=1, shuffle=False), last="balance")
    module = pickle.loads(pickle.dumps(fb.bridges.lightning.data_module(data, held_out=held_out)))
    for limit, number in (({}, 400), ({"limit_val_batches": 4}, 124)):
        open_trainer(max_epochs=2, enable_checkpointing=False, **limit).fit(model, datamodule=module)
        assert model.validated == [[*range(62)], *[[*range(number)]] * 2]
        model.validated.clear()
    assert sorted(module.state_dict()) == ["cursor"]


@pytest.fixture
def module(data: fb.Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)  # where a search for a learning rate writes its checkpoint
    return fb.bridges.lightning.data_module(data)


def test_a_new_trainer_begins_at_the_first_row(module: Any, calm_ids: list[list[int]]) -> None:
    open_trainer(max_steps=5, enable_checkpointing=False).fit(linear(), datamodule=module)
    model = linear()
    trainer = open_trainer(max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, datamodule=module)
    assert model.seen == calm_ids[:12]
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, datamodule=module)
    assert model.seen == calm_ids


def test_a_search_for_a_learning_rate_costs_no_row(
    module: Any, calm_ids: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.callbacks import LearningRateFinder

    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # no thread of its own
    model, finder = linear(), LearningRateFinder(num_training_steps=5, max_lr=1e-3)
    open_trainer(max_epochs=1, callbacks=[finder]).fit(model, datamodule=module)
    assert model.seen == calm_ids[:5] + calm_ids[:12]


@pytest.mark.parametrize(("option", "first"), [({"limit_train_batches": 5}, (0, 12)), ({"overfit_batches": 5}, (0, 0))])
def test_cut_epochs_are_equally_long(
    module: Any, calm_ids: list[list[int]], tmp_path: Path, option: dict[str, int], first: tuple[int, int]
) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    expected = [batch for start in first for batch in calm_ids[start : start + 5]]
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    model = linear()
    open_trainer(max_epochs=2, callbacks=[saver], **option).fit(model, datamodule=module)
    assert model.seen == expected
    for done in (5, 7) if "limit_train_batches" in option else ():
        model = linear()
        trainer = open_trainer(max_epochs=2, enable_checkpointing=False, **option)
        trainer.fit(model, datamodule=module, ckpt_path=str(tmp_path / f"step={done}.ckpt"))
        assert model.seen == expected[done:]


def test_the_batch_of_a_failed_step_is_trained_after_a_resume(
    module: Any, calm_ids: list[list[int]], tmp_path: Path
) -> None:
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    failing, model = linear(fails_at=5), linear()
    saver = OnExceptionCheckpoint(tmp_path, filename="failed")
    with pytest.raises(RuntimeError, match="the step failed"):
        open_trainer(max_epochs=1, callbacks=[saver]).fit(failing, datamodule=module)
    trainer = open_trainer(max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, datamodule=module, ckpt_path=str(tmp_path / "failed.ckpt"))
    assert failing.seen + model.seen == calm_ids[:12]


def test_a_spawned_process_gets_the_module(module: Any, calm_ids: list[list[int]]) -> None:
    model = linear()
    trainer = open_trainer(max_epochs=1, enable_checkpointing=False)
    trainer.fit(model, datamodule=pickle.loads(pickle.dumps(module)))
    assert model.seen == calm_ids[:12]
