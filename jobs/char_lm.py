"""Train a character model on a text, tinyshakespeare.

An epoch has each window of tokens once. Each epoch cuts the windows elsewhere.

forebay run --driver local jobs/char_lm.py text=../shared/data/tinyshakespeare.txt
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

import forebay as fb
from forebay.errors import InvalidOption

ROW_GROUP_ROWS = 1 << 17
WARM_UP = 0.05
"""Share of the training in which the learning rate rises."""


def job(
    text: str = "../shared/data/tinyshakespeare.txt",
    steps: int = 64,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    workers: int = 1,
    gpus: float | None = None,
    epochs: int = 2,
    global_batch: int = 12,
    lr: float = 1e-3,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Predict the next character.

    The last tenth of the text is held out.

    Args:
        text: Text file. Its characters are converted to Parquet next to the runs.
        steps: Characters that the model looks back on.
        lr: Highest learning rate: it rises to it, and falls to a tenth of it along a cosine.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    source, letters = to_parquet(Path(text), Path(storage) / "data")
    blocks = fb.CacheSpec(path=cache)
    past = fb.History(["token"], steps=steps + 1, dtype="uint16")
    series = fb.Sequences(fb.scan(source), past=past, stride=steps, shift=True, cache=blocks)
    training, held_out = series.split(fractions=(0.9,))
    plan = fb.build_plan(training, seed=seed)
    rate = partial(learning_rate, highest=lr, rows=plan.num_rows, epochs=epochs)
    return fb.Job(
        train=partial(train, sizes=(letters, steps, width, heads, layers), rate=rate),
        data=fb.Data(plan=plan, transform=training.transform, global_batch=global_batch),
        held_out=fb.Data(plan=fb.build_plan(held_out, shuffle=False), transform=held_out.transform, global_batch=64),
        epochs=epochs,
        workers=workers,
        resources=fb.Resources(gpus=gpus),
        seed=seed,
        cache=blocks,
        storage=storage,
        name=name,
    )


def train(worker: fb.Worker, sizes: tuple[int, int, int, int, int], rate: Callable[[int, int], float]) -> None:
    model, opt = worker.setup(CharacterModel(*sizes), adam)
    worker.evaluate_with(partial(evaluate, worker, model))
    for batch in worker.loader():
        for group in opt.param_groups:
            group["lr"] = rate(batch.epoch, batch.position)
        loss = worker.backward(batch, lambda part: next_token_loss(model, part))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        worker.commit(loss=loss)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """Optimizer as nanoGPT's: only matrices decay."""
    kept = list(parameters)
    groups = [
        {"params": [each for each in kept if each.dim() >= 2], "weight_decay": 0.1},
        {"params": [each for each in kept if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99))


def learning_rate(epoch: int, position: int, *, highest: float, rows: int, epochs: int) -> float:
    """Learning rate at a position.

    A function of the position alone, so a resumed run continues with the same rate.
    """
    share = (epoch + position / rows) / epochs
    if share < WARM_UP:
        return highest * share / WARM_UP
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP))))


def next_token_loss(model: nn.Module, batch: fb.Batch) -> Tensor:
    """Mean loss of a window's tokens but the first."""
    tokens = batch["past"][:, :, 0].long()
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def evaluate(worker: fb.Worker, model: nn.Module) -> dict[str, float]:
    """Mean loss over held-out windows, equal on every rank."""
    model.eval()
    sums = np.zeros(2)
    for batch in worker.held_out() or ():
        loss = next_token_loss(model, batch)
        if batch.weight > 0:
            sums += loss.item() * batch.num_rows, batch.num_rows
    model.train()
    total, count = worker.all_reduce(sums)
    return {"validation_loss": float(total / count)}


def to_parquet(source: Path, folder: Path) -> tuple[str, int]:
    """Path of the text as numbers, and its vocabulary size."""
    if not source.exists():
        raise InvalidOption(f"text={str(source)!r} does not exist. Give the path of a text file.")
    codes = np.array([ord(letter) for letter in source.read_text()], dtype=np.int32)
    letters, tokens = np.unique(codes, return_inverse=True)
    target = folder / f"{source.stem}.parquet"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".unfinished")
        pq.write_table(pa.table({"token": tokens.astype(np.uint16)}), unfinished, row_group_size=ROW_GROUP_ROWS)
        unfinished.rename(target)
    return str(target), len(letters)


class CharacterModel(nn.Module):
    """Small decoder-only transformer, as nanoGPT's setting for a CPU."""

    def __init__(self, letters: int, steps: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(letters, width), nn.Embedding(steps, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, functional.gelu, batch_first=True, norm_first=True, bias=False
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = "linear2" in name or "out_proj" in name
                nn.init.normal_(parameter, 0, 0.02 / (math.sqrt(2 * layers) if is_residual else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.layers(self.tokens(tokens) + self.positions.weight[:length], mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits
