"""Train a small ResNet on images while workers come and go.

forebay run studies/elastic_cnn.py min_workers=1 max_workers=4 scaling=walk
forebay run --driver horovod studies/elastic_cnn.py scaling=double epochs=12
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

import forebay as fb
from forebay.errors import BadJob, InvalidOption

ROW_GROUP_ROWS = 64


def job(
    data: str = "",
    min_workers: int = 1,
    max_workers: int = 4,
    start: int | None = None,
    epochs: int = 8,
    global_batch: int = 64,
    lr: float = 3e-3,
    size: int = 16,
    checkpoint_every: int = 1,
    lanes: int = 16,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Classify pictures: digits by default.

    Args:
        data: Parquet with a column `image` of PNG or JPEG files (or structs with their `bytes`, as Hugging Face writes
            them) and a column `label` of numbers from 0. Default: scikit-learn's 1,797 handwritten digits.
        start: Number of workers at first. Default: `max_workers`.
        size: Width and height in pixels. Pictures are converted to grey.
    """
    manifest = fb.scan(data or write_digits(Path(storage) / "data" / "digits.parquet"))
    training, evaluation = manifest.split(0.2, seed=0)  # The same split for every seed of the training.
    transform = fb.Transform(fn=partial(decode, size=size))
    return fb.Job(
        train=partial(train, lr=lr),
        resources=fb.Resources(gpus=0),
        data=fb.Data(
            plan=fb.build_plan(training, seed=seed, lanes=lanes), transform=transform, global_batch=global_batch
        ),
        held_out=fb.Data(
            plan=fb.build_plan(evaluation, shuffle=False, lanes=lanes), transform=transform, global_batch=256
        ),
        epochs=epochs,
        elastic=fb.Elastic(min_workers=min_workers, max_workers=max_workers, start=start),
        seed=seed,
        checkpoint_every=checkpoint_every,
        cache=fb.CacheSpec(path=cache),
        storage=storage,
        name=name,
    )


def train(worker: fb.Worker, lr: float) -> None:
    model, optimizer = worker.setup(SmallResNet(), partial(torch.optim.AdamW, lr=lr, weight_decay=1e-2))
    worker.evaluate_with(partial(accuracy, worker, model))
    for batch in worker.loader():
        logits = model(moved(batch["image"]))
        loss = functional.cross_entropy(logits, batch["label"]) * batch.weight
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss)


def accuracy(worker: fb.Worker, model: nn.Module) -> dict[str, float]:
    """Share of held-out pictures that are classified correctly, over all ranks. Raises `BadJob` without
    held-out data.
    """
    batches = worker.held_out()
    if batches is None:
        raise BadJob("accuracy() needs held-out data, and this job has none. Set held_out= in the Job.")
    counts = np.zeros(2)
    model.eval()
    with torch.no_grad():
        for batch in batches:
            right = model(batch["image"]).argmax(1) == batch["label"]
            if batch.weight > 0:
                counts += [int(right.sum()), len(right)]
    model.train()
    right, total = worker.all_reduce(counts)
    return {"accuracy": float(right / total)}


def moved(images: Tensor) -> Tensor:
    """Turn, scale and shift each picture a little: a larger training set from the same pixels."""
    angle, scale = torch.empty(2, len(images)).uniform_(-1, 1)
    angle, scale = angle * 0.2, 1 + scale * 0.1
    shift = torch.empty(len(images), 2).uniform_(-0.15, 0.15)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = [torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid.to(images.device), align_corners=False)


class SmallResNet(nn.Module):
    """Three stages of two residual blocks (He et al., arXiv 1512.03385) with 16, 32 and 64 channels.

    Group norm instead of batch norm: the output for a picture must not depend on the other pictures of its worker.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        stages = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.blocks = nn.Sequential(*(Residual(*stage) for stage in stages))
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.head(functional.relu(features).mean((2, 3)))
        return logits


class Residual(nn.Module):
    """Two convolutions beside a shortcut, norm and activation first (arXiv 1603.05027)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, channels), nn.ReLU(), nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        )
        self.second = nn.Sequential(nn.GroupNorm(8, out), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1, bias=False))
        plain = channels == out and stride == 1
        self.shortcut = nn.Identity() if plain else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        total: Tensor = self.shortcut(features) + self.second(self.first(features))
        return total


def decode(rows: pa.RecordBatch, size: int) -> Mapping[str, np.ndarray]:
    """Decode pictures: `image` float32 [rows, 1, size, size] from 0 to 1, `label` int64 [rows]."""
    pictures = [_grey(cell["bytes"] if isinstance(cell, dict) else cell, size) for cell in rows["image"].to_pylist()]
    labels = rows["label"].to_numpy(zero_copy_only=False).astype(np.int64)
    return {"image": np.stack(pictures)[:, None], "label": labels}


def _grey(encoded: bytes, size: int) -> np.ndarray:
    with Image.open(io.BytesIO(encoded)) as picture:
        grey = picture.convert("L").resize((size, size), Image.Resampling.BICUBIC)
        return np.asarray(grey, dtype=np.float32) / 255


def write_digits(path: Path) -> str:
    """Write scikit-learn's digits (UCI, 8 x 8 pixels, 16 greys) as PNG files in Parquet, once. Returns the path.

    Raises `InvalidOption` if scikit-learn is not installed.
    """
    if path.exists():
        return str(path)
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only who has no pictures of their own needs it
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "the digits come with scikit-learn, which is not installed. pip install scikit-learn, or give data= a "
            "Parquet file with the columns image and label."
        ) from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels = (images[order].reshape(-1, 8, 8) / 16 * 255).round().astype(np.uint8)
    table = pa.table({"image": [_png(each) for each in pixels], "label": labels[order]})
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, row_group_size=ROW_GROUP_ROWS)
    unfinished.rename(path)
    return str(path)


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
