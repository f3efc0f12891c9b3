"""Elastic Horovod on Ray as shipped: `ElasticRayExecutor`, `TorchState`, `hvd.elastic.run`.

https://horovod.readthedocs.io/en/stable/elastic_include.html. Horovod 0.28.1 does not start on Ray 2.60 without two
shims: the names `ray.state` and `current_node_id`. Hosts come from a list, because all nodes of one machine have one
address. Each host has one slot, because a failure removes the whole host from the list, and Horovod never adds it
again. The cluster that loses a node checks the health of its nodes as quickly as for every system: see
`SmallNodes`.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import ray._private.state as ray_state
import torch

from bench.elastic.director import Act, Director, kill_last_rank
from bench.elastic.log import EventLog
from bench.elastic.setting import ElasticSetting
from forebay.testing.drivers.nodes import SmallNodes

ray.state = ray_state
if not hasattr(ray_state, "current_node_id"):
    ray_state.current_node_id = lambda: f"node:{ray.util.get_node_ip_address()}"

from horovod.ray import ElasticRayExecutor  # noqa: E402 - after the shims
from horovod.runner.elastic.discovery import HostDiscovery  # noqa: E402


class ListedHosts(HostDiscovery):  # type: ignore[misc]
    """List of `wanted` hosts with one slot each. A host that Horovod has removed from its list gets a successor.

    `wanted=None`: as many hosts as Ray has nodes alive, which is the number that Horovod's `RayHostDiscovery` uses.
    """

    def __init__(self, wanted: int | None) -> None:
        self.wanted, self.executor = wanted, None
        self._names, self._count = [], 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        driver = self.executor.driver if self.executor else None
        if driver is not None:
            self._names = [name for name in self._names if not driver._host_manager.is_blacklisted(name)]  # noqa: SLF001
        wanted = sum(node["Alive"] for node in ray.nodes()) if self.wanted is None else self.wanted
        while len(self._names) < wanted:
            self._names.append(f"host-{self._count}")
            self._count += 1
        return dict.fromkeys(self._names[:wanted], 1)


class AnyNode(ElasticRayExecutor):  # type: ignore[misc]
    """Executor that places workers wherever there is room, not on the Ray node with the host's name."""

    def _create_resources(self, hostname: str) -> dict[str, Any]:  # noqa: ARG002 - Horovod's signature
        return {"num_cpus": self.cpus_per_slot, "num_gpus": 0}


def run(setting: ElasticSetting) -> None:
    """Run the acts of `setting`."""
    log, enough = EventLog(setting.log), Path(setting.folder) / "enough"
    with ExitStack() as stack:
        hosts = ListedHosts(None if setting.scenario == "node" else 1)
        acts = _acts(setting, log, hosts, stack)
        settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2, verbose=0, nics={"lo"})
        settings.discovery = hosts
        executor = AnyNode(settings, use_gpu=False, cpus_per_slot=1, override_discovery=False)
        hosts.executor = executor
        executor.start()
        Director(log, acts, end=enough.touch).start()
        executor.run(_trainer(setting, str(enough)))


def _trainer(setting: ElasticSetting, enough: str) -> Any:
    log, width, step_s = EventLog(setting.log), setting.width, setting.step_s

    def train() -> None:
        import horovod.torch as hvd  # noqa: PLC0415 - in the worker
        import horovod.torch.elastic  # noqa: PLC0415

        hvd.init()
        model = torch.nn.Linear(width, width)
        plain = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

        @horovod.torch.elastic.run
        def loop(state: Any) -> None:
            log.note_birth(hvd.rank(), hvd.size())
            log.note("ready", rank=hvd.rank(), size=hvd.size())
            while not hvd.broadcast_object(Path(enough).exists(), root_rank=0):
                model(torch.randn(8, width)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(step_s)
                state.step += 1
                if hvd.rank() == 0:
                    log.note("step", step=state.step, rank=0, size=hvd.size())
                began = time.perf_counter()
                state.commit()
                if hvd.rank() == 0:
                    log.note("commit", seconds=time.perf_counter() - began)

        loop(horovod.torch.elastic.TorchState(model=model, optimizer=optimizer, step=0))

    return train


def _acts(setting: ElasticSetting, log: EventLog, hosts: ListedHosts, stack: ExitStack) -> list[Act]:
    if setting.scenario == "node":
        nodes = SmallNodes(others=1, cpus=1, head_cpus=1)
        stack.callback(nodes.close)
        return [Act("kill a node", 2, lambda: nodes.kill(nodes.others[0])), Act("enough", 1, lambda: None)]
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    stack.callback(ray.shutdown)
    if setting.scenario == "commit":
        return [Act("enough", 1, lambda: None, after=setting.commits)]
    return [
        Act("grow", 1, lambda: setattr(hosts, "wanted", 2)),
        Act("kill a worker", 2, lambda: kill_last_rank(log)),
        Act("shrink", 2, lambda: setattr(hosts, "wanted", 1)),
        Act("enough", 1, lambda: None),
    ]
