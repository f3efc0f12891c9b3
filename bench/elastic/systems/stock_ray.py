"""Ray Train as in its documentation: elastic `ScalingConfig`, a checkpoint reported at every step.

https://docs.ray.io/en/latest/train/user-guides/elastic-training.html. It has no command to resize: the number of
workers follows the nodes. It grows when a node joins. It shrinks when a node has announced its end (as a cloud does,
five seconds ahead) and has left. All options have their defaults, with two exceptions. New nodes are looked for every
second instead of every minute: training continues meanwhile, so that changes no gap. The cluster that loses a node
checks the health of its nodes as quickly as for every system: see `SmallNodes`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from bench.elastic.director import Act, Director, kill_last_rank
from bench.elastic.log import EventLog
from bench.elastic.setting import ElasticSetting
from forebay.testing.drivers.nodes import SmallNodes

NOTICE_S = 5.0
STEPS = 5  # Steps between two acts: its commits take two seconds each. More than three are needed, which warm up.


def run(setting: ElasticSetting) -> None:
    """Run the acts of `setting`."""
    log, enough = EventLog(setting.log), Path(setting.folder) / "enough"
    start = 2 if setting.scenario == "node" else 1
    with closing(SmallNodes(others=start - 1, cpus=1, head_cpus=1)) as nodes:
        trainer = TorchTrainer(
            train,
            train_loop_config={
                "log": setting.log,
                "enough": str(enough),
                "step_s": setting.step_s,
                "width": setting.width,
            },
            scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=1.0),
            run_config=RunConfig(
                name="measured",
                storage_path=f"{setting.folder}/ray",
                failure_config=FailureConfig(max_failures=5),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            ),
        )
        # Nodes can only be added from the main thread.
        fit = threading.Thread(target=trainer.fit, daemon=True)
        fit.start()
        Director(log, _acts(setting, log, nodes), end=enough.touch).run()
        fit.join()


def train(config: dict[str, Any]) -> None:
    """Step of the bench, restored from a checkpoint and reported with one."""
    log, context = EventLog(config["log"]), ray.train.get_context()
    rank, size, width = context.get_world_rank(), context.get_world_size(), config["width"]
    log.note_birth(rank, size)
    model, step = torch.nn.Linear(width, width), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = prepare_model(model)
    log.note("ready", rank=rank, size=size)
    while not _is_enough(config["enough"], size):
        wrapped(torch.randn(8, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(config["step_s"])
        step += 1
        if rank == 0:
            log.note("step", step=step, rank=0, size=size)
        began = time.perf_counter()
        _report(step, model, optimizer, rank)
        if rank == 0:
            log.note("commit", seconds=time.perf_counter() - began)


def _report(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    if rank:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


def _is_enough(flag: str, size: int) -> bool:
    """Whether the flag file exists. Rank 0 decides for all ranks."""
    is_enough = torch.tensor([float(Path(flag).exists())])
    if size > 1:
        dist.broadcast(is_enough, src=0)
    return bool(is_enough)


def _acts(setting: ElasticSetting, log: EventLog, nodes: SmallNodes) -> list[Act]:
    if setting.scenario == "commit":
        return [Act("enough", 1, lambda: None, after=setting.commits)]
    if setting.scenario == "node":
        return [
            Act("kill a node", 2, lambda: nodes.kill(nodes.others[0]), after=STEPS),
            Act("enough", 1, lambda: None, after=2),
        ]

    def take_back() -> None:
        deadline = time.time() + NOTICE_S
        nodes.announce_drain(nodes.others[0], deadline)
        time.sleep(max(0.0, deadline - time.time()))
        nodes.kill(nodes.others[0])

    return [
        Act("grow", 1, nodes.add, after=STEPS),
        Act("kill a worker", 2, lambda: kill_last_rank(log), after=STEPS),
        Act("shrink", 2, take_back, after=STEPS),
        Act("enough", 1, lambda: None, after=2),
    ]
