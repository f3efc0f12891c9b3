"""Character model trained on windows of the plan, and on random offsets with as many steps: validation losses.

python studies/token_windows.py ../shared/data/tinyshakespeare.txt --epochs 2

The windows are cut as in jobs/char_lm.py: each token once per epoch, cut elsewhere in each epoch. Random offsets are
drawn as nanoGPT draws them. Model, optimizer, learning rate and held-out windows are the same.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

import forebay as fb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "jobs"))
from char_lm import CharacterModel, adam, job, learning_rate

STEPS, GLOBAL_BATCH, LR = 64, 12, 1e-3


def main(
    text: Annotated[Path, typer.Argument(help="Text file.")] = Path("../shared/data/tinyshakespeare.txt"),
    epochs: int = 2,
    seed: int = 0,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = job(text=str(text), epochs=epochs, seed=seed, cache=f"{folder}/cache", storage=folder)
        letters = sorted(set(text.read_text()))
        numbers = {letter: number for number, letter in enumerate(letters)}
        tokens = torch.tensor([numbers[letter] for letter in text.read_text()])
        training = tokens[: len(tokens) * 9 // 10]
        held_out = torch.cat([batch["past"][:, :, 0].long() for batch in _epoch(made.held_out, made.cache)])
        for name, order in (("plan", _planned(made, training)), ("random offsets", _random(made, training, seed))):
            torch.manual_seed(seed)
            torch.set_num_threads(1)
            began = time.process_time()
            seen = np.zeros(len(training), np.int64)
            model = CharacterModel(len(letters), STEPS, 128, 4, 4)
            steps = train(model, order, seen, made.data.plan.num_rows, epochs)
            counts = f"never {np.mean(seen == 0):.1%}, most often {seen.max()} times"
            took_s = time.process_time() - began
            print(
                f"{name}: {steps} steps of {GLOBAL_BATCH} x {STEPS}, validation loss {loss_of(model, held_out):.4f}; "
                f"tokens predicted {counts}; {took_s:.0f} s of CPU",
                flush=True,
            )


def train(
    model: nn.Module, order: Iterator[tuple[int, int, Tensor, Tensor]], seen: np.ndarray, rows: int, epochs: int
) -> int:
    """Train on all batches of `order`: (epoch, position, first tokens, windows). Returns the number of steps."""
    optimizer, steps = adam(model.parameters()), 0
    for epoch, position, first, windows in order:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch, position, highest=LR, rows=rows, epochs=epochs)
        loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        np.add.at(seen, (first[:, None] + torch.arange(1, STEPS + 1)).numpy(), 1)
        steps += 1
    return steps


@torch.no_grad()
def loss_of(model: nn.Module, windows: Tensor) -> float:
    """Mean loss over all tokens of all windows but their first."""
    parts = [
        functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
        for part in windows.split(64)
    ]
    return sum(parts) / windows[:, 1:].numel()


def _planned(made: fb.Job, training: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    for epoch in range(made.epochs):
        for batch in _epoch(made.data, made.cache, epoch):
            first = torch.from_numpy(np.ascontiguousarray(batch.windows[:, 1]))
            windows = batch["past"][:, :, 0].long()
            assert torch.equal(windows, training[first[:, None] + torch.arange(STEPS + 1)])
            yield epoch, batch.position, first, windows


def _random(made: fb.Job, training: Tensor, seed: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    rng = np.random.default_rng(seed)
    rows = made.data.plan.num_rows
    for epoch in range(made.epochs):
        for position in range(0, rows, GLOBAL_BATCH):
            first = torch.from_numpy(rng.integers(0, len(training) - STEPS, min(GLOBAL_BATCH, rows - position)))
            yield epoch, position, first, training[first[:, None] + torch.arange(STEPS + 1)]


def _epoch(data: fb.Data | None, cache: fb.CacheSpec | None, epoch: int = 0) -> Iterator[fb.Batch]:
    assert data is not None
    assert cache is not None
    with fb.Loader(data, cache.open(), epoch=epoch) as loader:
        yield from loader


if __name__ == "__main__":
    typer.run(main)
