from __future__ import annotations

import importlib.util
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


@pytest.mark.variation("the cursor in the checkpoints of another trainer")
@pytest.mark.parametrize("after", [1, 2])
def test_a_checkpoint_continues_in_mid_epoch(
    data: fb.Data, calm_ids: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.chdir(tmp_path)
    data = replace(data, augment=add_noise)
    lightning = pytest.importorskip("lightning")

    from lightning.pytorch.callbacks import ModelCheckpoint

    class LightningLinear(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: fb.Batch, index: int) -> torch.Tensor:
            self.seen.append(sorted(batch["id"].tolist()))
            return (self.layer(batch["x"] / 400 + batch["noise"])[:, 0] - batch["labels"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(max_steps: int, checkpoint: str | None = None) -> LightningLinear:
        torch.manual_seed(0)
        model = LightningLinear()
        options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        saver = ModelCheckpoint(tmp_path, filename=f"{{step}}-of-{max_steps}", every_n_train_steps=4, save_top_k=-1)
        trainer = lightning.Trainer(max_epochs=2, max_steps=max_steps, callbacks=[saver], **options)
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
