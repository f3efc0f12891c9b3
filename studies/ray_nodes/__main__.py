"""The models of the control plane and of the data plane beside small Ray nodes on this machine.

    python -m studies.ray_nodes 8 16 32

A node takes some 250 MB and 10 CPU seconds. With `FOREBAY_PRELOAD=1` workers fork from one process, which halves both.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from studies.ray_nodes import control, data
from studies.ray_nodes.counted import by_method, counting, received
from tests.preloaded.workers import forked_workers

from forebay.testing.drivers.nodes import SmallNodes


@contextmanager
def running(num_nodes: int, counted: Path) -> Iterator[SmallNodes]:
    """Nodes of one CPU, started one after another, whose actors write their calls to `counted`."""
    with forked_workers(), counting(counted):
        nodes = SmallNodes(others=num_nodes - 1)
        try:
            yield nodes
        finally:
            nodes.close()


def cpu_of(name: str) -> float:
    """CPU seconds of the processes below this one with `name` in their command line."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if name in " ".join(process.cmdline()):
                total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def measure(num_nodes: int) -> None:
    """Print what a run and two epochs sent, beside the models."""
    with tempfile.TemporaryDirectory(prefix="fb-") as name:
        folder = Path(name)
        with running(num_nodes, folder / "calls"):
            print(f"{num_nodes} nodes; Ray's head: {cpu_of('gcs_server'):.1f} s of CPU", flush=True)
            tell_data(*data.measure(folder / "data", folder / "calls"))
            print(f"  Ray's head: {cpu_of('gcs_server'):.1f} s of CPU", flush=True)
            tell_control(control.measure(num_nodes, folder / "run", folder / "calls"))
            print(f"  Ray's head: {cpu_of('gcs_server'):.1f} s of CPU", flush=True)
            print("  all calls:", dict(sorted(by_method(received(folder / "calls")).items())), flush=True)


def tell_data(first: data.EpochCalls, again: data.EpochCalls, model: data.ModelEpoch) -> None:
    """Print the epochs beside the model."""
    print(f"  first epoch: {first.from_source} row groups from the source, {first.from_peers} from peers")
    rows = (
        ("requests for filters", again.total("bloom_filters"), model.filter_requests),
        ("kB of filters", again.num_bytes("bloom_filters") / 1e3, _kb(model)),
        ("requests for blocks", again.total("send_block"), model.block_requests),
        ("at the busiest peer", again.most("send_block"), model.busiest),
        ("row groups from the source", again.from_source, f"{model.least_at_source} to {model.most_at_source}"),
    )
    for what, real, said in rows:
        print(f"  {what}: {real:.0f}, model {said}", flush=True)


def _kb(model: data.ModelEpoch) -> str:
    return f"{model.least_filter_bytes / 1e3:.1f} to {model.most_filter_bytes / 1e3:.1f}"


def tell_control(phases: Sequence[control.PhaseCalls]) -> None:
    """Print the calls of each phase of a run beside the model."""
    for phase in phases:
        print(f"  {phase.name}: {phase.seconds:.1f} s, {phase.happened}")
        for actor, said in phase.model().items():
            here = [call for call in phase.calls if call.actor == actor]
            real_kb, methods = sum(call.num_bytes for call in here) / 1e3, Counter(call.method for call in here)
            model_kb = f", model {said.num_bytes / 1e3:.0f}" if said.num_bytes else ""
            print(f"    {actor}: {len(here)} calls, model {said.calls}; {real_kb:.0f} kB{model_kb}")
            for method in sorted(methods | said.methods):
                if methods[method] != said.methods[method]:
                    print(f"      {method}: {methods[method]}, model {said.methods[method]}", flush=True)


def main(sizes: Sequence[str]) -> None:
    for size in sizes:
        measure(int(size))


if __name__ == "__main__":
    main(sys.argv[1:])
