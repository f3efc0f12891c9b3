"""The models of the control plane and of the data plane beside small Ray nodes on this machine.

    python -m studies.ray_nodes 8 16 32

A node takes some 250 MB and 10 CPU seconds. With `FOREBAY_PRELOAD=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1`, workers
fork from one process, which halves both.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import median

import psutil
from studies.ray_nodes import control, data
from studies.ray_nodes.counted import by_method, counting, received
from studies.ray_nodes.model import ModelEpoch
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
    """Print what two epochs and a run sent, beside the models. Each has nodes of its own: 32 take 20 GB for both."""
    with tempfile.TemporaryDirectory(prefix="fb-") as name:
        folder, began = Path(name), time.monotonic()
        with running(num_nodes, folder / "epochs"):
            print(f"{num_nodes} nodes, {time.monotonic() - began:.0f} s; {head()}", flush=True)
            tell_data(*data.measure(folder / "data", folder / "epochs"))
            print(f"  {head()}", flush=True)
        with running(num_nodes, folder / "calls"):
            tell_control(control.measure(num_nodes, folder / "run", folder / "calls"))
            print(f"  {head()}, {time.monotonic() - began:.0f} s in all", flush=True)
            print("  all calls:", dict(sorted(by_method(received(folder / "calls")).items())), flush=True)


def head() -> str:
    """CPU seconds of Ray's head."""
    return f"Ray's head: {cpu_of('gcs_server'):.1f} s of CPU"


def tell_data(first: data.EpochCalls, again: data.EpochCalls, model: ModelEpoch) -> None:
    """Print the epochs beside the model."""
    print(f"  first epoch: {first.from_source} row groups from the source, {first.from_peers} from peers")
    times = [at for each in again.looked_up_at for at in each]
    begins = [min(each) for each in again.looked_up_at if each]
    print(
        f"  look-ups in {max(times) - min(times):.1f} s, of {len(begins)} nodes that began within "
        f"{max(begins) - min(begins):.1f} s; filters came after {median(chain(*again.answer_s)) * 1e3:.0f} ms"
    )
    rows = (
        ("look-ups", again.total("find"), f"{model.lookups}"),
        ("requests for filters", again.total("bloom_filters"), f"{model.filter_requests}"),
        ("kB of filters", again.num_bytes("bloom_filters") / 1e3, f"{model.filter_bytes / 1e3:.0f}"),
        ("requests for blocks", again.total("send_block"), f"{model.block_requests}"),
        ("at the busiest peer", again.most("send_block"), f"{model.busiest}"),
        ("row groups from the source", again.from_source, f"{model.least_at_source} to {model.most_at_source}"),
    )
    for what, real, said in rows:
        print(f"  {what}: {real:.0f}, model {said}", flush=True)


def tell_control(phases: Sequence[control.PhaseCalls]) -> None:
    """Print the calls of each phase of a run beside the model."""
    for phase in phases:
        print(f"  {phase.name}: {phase.seconds:.1f} s, {phase.happened}")
        for actor, said in phase.model().items():
            here = [call for call in phase.calls if call.actor == actor]
            if not here and not said.calls:
                continue
            methods, real_kb = Counter(call.method for call in here), sum(call.num_bytes for call in here) / 1e3
            cpu = here[-1].cpu_s - here[0].cpu_s if here else 0.0
            print(
                f"    {actor}: {len(here)} calls, model {said.calls}; {real_kb:.0f} kB, model "
                f"{said.num_bytes / 1e3:.0f}" + (f"; {cpu:.2f} s of CPU with Ray" if said.cpu_s else "")
            )
            for method in sorted(methods | said.methods):
                if methods[method] != said.methods[method]:
                    print(f"      {method}: {methods[method]}, model {said.methods[method]}", flush=True)


def main(sizes: Sequence[str]) -> None:
    for size in sizes:
        measure(int(size))


if __name__ == "__main__":
    main(sys.argv[1:])
