"""Law of bridges in trainers with processes: killed, a run goes on in another world with the rows that were left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

SAVED = 4
"""Steps of the last checkpoint before the kill."""
KILLED = 7
"""Step in which the last rank is killed."""

READ = f"""
import json, os, signal, sys
from pathlib import Path
import torch
import forebay as fb

source, out, kill = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "x1"]), labels=fb.Label("x1"))
plan = fb.build_plan(fb.scan(source), seed=7)
seen = []

def note(batch):
    seen.append(batch["id"].tolist())
    (out / f"rows-{{size}}-{{rank}}.json").write_text(json.dumps(seen))
    if kill and rank == size - 1 and len(seen) == {KILLED}:
        os.kill(os.getpid(), signal.SIGKILL)

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels, **_):
        return {{"loss": (self.layer(x / 400)[:, 0] - labels).square().mean()}}
"""

HUGGING_FACE = """
import transformers

class Noted(fb.bridges.hf.TrainerMixin, transformers.Trainer):
    def training_step(self, model, inputs, *rest, **options):
        note(inputs)
        return super().training_step(model, inputs, *rest, **options)

args = transformers.TrainingArguments(
    str(out), num_train_epochs=2, save_steps=4, ignore_data_skip=True, use_cpu=True, report_to="none", disable_tqdm=True
)
with fb.Loader(plan, transform, world=fb.World(rank=rank, size=size), global_batch=32, last="drop") as loader:
    Noted(Linear(), args, train_loader=loader).train(resume_from_checkpoint=not kill)
"""

LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Linear()

    def training_step(self, batch, index):
        note(batch)
        return self.net(batch["x"], batch["labels"])["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=size, strategy="ddp", logger=False, enable_progress_bar=False,
    callbacks=[ModelCheckpoint(out, filename="{step}", every_n_train_steps=4, save_top_k=-1)],
).fit(
    Module(),
    datamodule=fb.bridges.lightning.data_module(fb.Data(plan=plan, transform=transform, global_batch=32, last="drop")),
    ckpt_path=None if kill else str(out / "step=4.ckpt"),
)
"""


def run(script: str, folder: str, out: Path, *, size: int, kill: bool) -> None:
    (out / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    ended = subprocess.run(
        [*command, str(out / "script.py"), folder, str(out), str(int(kill))],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert bool(ended.returncode) == kill, ended.stderr[-4000:]


def joined(out: Path, size: int) -> list[list[int]]:
    """Sorted ids of each global batch that all ranks have begun."""
    parts = [json.loads((out / f"rows-{size}-{rank}.json").read_text()) for rank in range(size)]
    return [sorted(row for part in batch for row in part) for batch in zip_longest(*parts) if None not in batch]


@pytest.mark.variation("processes of the trainers; worlds of one process are tested by default")
@pytest.mark.parametrize(("package", "script"), [("transformers", HUGGING_FACE), ("lightning", LIGHTNING)])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_killed_trainer_goes_on_in_another_world(
    folder: str, calm_ids: list[list[int]], tmp_path: Path, package: str, script: str, before: int, after: int
) -> None:
    pytest.importorskip(package)
    run(READ + script, folder, tmp_path, size=before, kill=True)
    begun = joined(tmp_path, before)
    # The other rank may be ended before it notes the batch of the kill.
    assert begun == calm_ids[: len(begun)] and len(begun) in (KILLED - 1, KILLED)
    run(READ + script, folder, tmp_path, size=after, kill=False)
    assert joined(tmp_path, after) == calm_ids[SAVED:]
