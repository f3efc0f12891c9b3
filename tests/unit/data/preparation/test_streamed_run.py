"""A run over a stream that is killed in mid-preparation, and resumes in another world."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from forebay.data.manifest.prepared import list_prepared

JOB = '''
"""A job for tests that trains on a stream, and notes the rows of each batch."""
import json, os, time
from functools import partial
import pyarrow as pa
import torch
from torch import nn
import forebay as fb

def slow(count):
    for start in range(0, count, 64):
        time.sleep(float(os.environ["PAUSE_S"]))
        yield pa.table({"row": list(range(start, start + 64))})

def train(worker, log):
    network, optimizer = worker.setup(nn.Linear(1, 1), partial(torch.optim.SGD, lr=1e-9))
    for batch in worker.loader():
        rows = batch["row"][:, 0].tolist() if batch.weight else []
        with open(log, "a") as file:
            file.write(json.dumps([batch.epoch, batch.position, rows]) + "\\n")
        loss = worker.backward(batch, lambda part: network(part["x"]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        worker.commit(loss=loss)

def job(folder: str, log: str, workers: int = 1, name: str = "streamed") -> fb.Job:
    stream = fb.prepare_stream(slow, count=4096, rows=4096, into=f"{folder}/prepared", row_group_rows=64, inputs=[],
                               version="1")
    transform = fb.Transform(x=fb.Dense(["row"]), row=fb.Dense(["row"], dtype="int64"))
    data = fb.Data(plan=fb.build_plan(stream.manifest, seed=3, lanes=4), transform=transform, global_batch=100)
    return fb.Job(train=partial(train, log=log), data=data, epochs=2, workers=workers, checkpoint_every=3,
                  cache=fb.CacheSpec(path=f"{folder}/cache", quota_bytes=1 << 26, min_free_bytes=0),
                  storage=f"{folder}/runs", storage_every_s=0.0, name=name)
'''


def start(folder: Path, log: Path, pause_s: float, workers: int = 1) -> subprocess.Popen[bytes]:
    (folder / "job.py").write_text(JOB)
    words = [f"folder={folder}", f"log={log}", f"workers={workers}"]
    line = [sys.executable, "-m", "forebay", "run", "--driver", "local", str(folder / "job.py"), *words]
    return subprocess.Popen(line, env=os.environ | {"PAUSE_S": str(pause_s)}, start_new_session=True)


def batches(log: Path) -> dict[tuple[int, int], list[int]]:
    """Rows of each batch, by epoch and position. A batch that was trained twice must have had the same rows."""
    found = defaultdict(set)
    for line in log.read_text().splitlines():
        epoch, position, rows = json.loads(line)
        found[epoch, position].update(rows)
    return {place: sorted(rows) for place, rows in found.items()}


@pytest.mark.variation
def test_it_goes_on_with_the_batches_of_an_undisturbed_run(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    assert start(tmp_path / "whole", whole, 0.0).wait(120) == 0
    first = start(tmp_path / "killed", killed, 0.5)
    deadline = time.monotonic() + 120
    while not (killed.exists() and len(killed.read_text().splitlines()) > 10):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert [found for _, found in list_prepared(str(tmp_path / "killed" / "prepared"))] == [None]
    assert max(position for _, position in batches(killed)) < 4096 / 2
    assert start(tmp_path / "killed", killed, 0.01, workers=2).wait(120) == 0
    assert batches(killed) == batches(whole)
    assert sorted(sum((rows for (epoch, _), rows in batches(killed).items() if epoch == 0), [])) == list(range(4096))
