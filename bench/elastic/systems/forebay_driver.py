"""Forebay's drivers, with the job and the command of a user.

The cluster that loses a node checks the health of its nodes as quickly as for every system: see `SmallNodes`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch

import forebay as fb
from bench.elastic.director import Act, Director, kill_last_rank
from bench.elastic.log import EventLog
from bench.elastic.setting import ElasticSetting
from forebay.events import EpochEnded, Preparing, Reported
from forebay.testing.drivers.nodes import SmallNodes
from forebay.training.driver.elastic import client as remote_control
from forebay.training.job.elastic import Elastic

NAME = "measured"
ROWS = 4096


def run(setting: ElasticSetting) -> None:
    """Run the acts of `setting`."""
    log = EventLog(setting.log)
    with ExitStack() as stack:
        acts = _node_acts(stack) if setting.scenario == "node" else _acts(setting, log, stack)
        Director(log, acts, end=lambda: remote_control.stop(NAME, "measured")).start()
        fb.run(_job(setting), setting.variant, callbacks=[partial(_note_event, log=log)])


def train(worker: fb.Worker, *, log: EventLog, step_s: float, width: int) -> None:
    """Step of the bench: one linear layer, and a sleep in place of more work."""
    world = worker.world
    log.note_birth(world.rank, world.size)
    model, optimizer = worker.setup(torch.nn.Linear(width, width), partial(torch.optim.SGD, lr=1e-3))
    log.note("ready", rank=world.rank, size=world.size)
    for _ in worker.loader():
        model(torch.randn(8, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(step_s)
        if world.rank == 0:
            log.note("step", step=worker.step + 1, rank=0, size=world.size)
        began = time.perf_counter()
        worker.commit()
        if world.rank == 0:
            log.note("commit", seconds=time.perf_counter() - began)
    log.note("parted", rank=world.rank, size=world.size)


def _job(setting: ElasticSetting) -> fb.Job:
    start = 1 if setting.scenario in ("changes", "commit") else 2
    return fb.Job(
        train=partial(train, log=EventLog(setting.log), step_s=setting.step_s, width=setting.width),
        resources=fb.Resources(gpus=0),
        data=_data(Path(setting.folder)),
        epochs=1000,
        elastic=Elastic(min_workers=1, max_workers=2, start=start),
        cache=None,
        name=NAME,
        storage=str(Path(setting.folder) / "runs"),
        checkpoint_every=1,
    )


def _data(folder: Path) -> fb.Data:
    rows = folder / "rows"
    rows.mkdir(parents=True)
    pq.write_table(pa.table({"x": np.arange(ROWS, dtype=np.float32)}), rows / "rows.parquet")
    return fb.Data(plan=fb.build_plan(fb.scan(str(rows))), transform=fb.Transform(x=fb.Dense(["x"])), global_batch=16)


def _acts(setting: ElasticSetting, log: EventLog, stack: ExitStack) -> list[Act]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    stack.callback(ray.shutdown)
    if setting.scenario == "commit":
        return [Act("enough", 1, lambda: None, after=setting.commits)]
    return [
        Act("grow", 1, lambda: remote_control.scale(NAME, 2)),
        Act("kill a worker", 2, lambda: kill_last_rank(log)),
        Act("shrink", 2, lambda: remote_control.scale(NAME, 1)),
        Act("enough", 1, lambda: None),
    ]


def _node_acts(stack: ExitStack) -> list[Act]:
    nodes = SmallNodes(others=1, cpus=1, head_cpus=1)
    stack.callback(nodes.close)
    return [Act("kill a node", 2, lambda: nodes.kill(nodes.others[0])), Act("enough", 1, lambda: None)]


def _note_event(event: object, _control: object, *, log: EventLog) -> None:
    if isinstance(event, Preparing):
        log.note("event", event=event.what)
    elif not isinstance(event, Reported | EpochEnded):
        log.note("event", event=type(event).__name__)
