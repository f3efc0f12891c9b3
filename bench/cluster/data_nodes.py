"""First epoch of a trainer node with one core for data workers: alone, and with three data nodes.

python -m bench.cluster.data_nodes --groups 128 --transform-ms 200

All four nodes are Ray nodes of this machine. The transform waits instead of computing, so that nodes do not share its
cores. A data node runs two of them at once, the trainer node one. Each way is measured twice, in turns, on an empty
cache. The row order of all epochs must be the same.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import typer
from ray.cluster_utils import Cluster

import forebay as fb
from forebay.data.cache.data_nodes.transport import RayDataNodes
from forebay.data.cache.node.client import attach
from forebay.runtime.metrics import Counters

COLUMNS, ROWS = 16, 4096
DATA_NODES, CORES = 3, 2


def main(
    groups: Annotated[int, typer.Option(help="Number of row groups.")] = 128,
    transform_ms: Annotated[float, typer.Option(help="Milliseconds that the transform of a row group takes.")] = 200.0,
    rounds: Annotated[int, typer.Option(help="Measurements of each way.")] = 2,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        plan = write(root / "data", groups)
        transform = fb.Transform(fn=partial(waiting, seconds=transform_ms / 1000), version="1")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            for _ in range(DATA_NODES):
                cluster.add_node(num_cpus=CORES, resources={"data_node": 1})
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            start_data_nodes()
            for number in range(rounds):
                for data_nodes in (None, "data_node"):
                    spec = fb.CacheSpec(path=str(root / f"cache-{number}-{data_nodes}"), data_nodes=data_nodes)
                    print(line(epoch(plan, transform, spec), data_nodes), flush=True)
                    shutil.rmtree(spec.path)
        finally:
            ray.shutdown()
            cluster.shutdown()


def write(folder: Path, groups: int) -> fb.Plan:
    folder.mkdir()
    values = np.random.default_rng(0).random((COLUMNS, groups * ROWS), dtype=np.float32)
    columns = {"id": np.arange(groups * ROWS), **{f"x{number}": column for number, column in enumerate(values)}}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=ROWS)
    return fb.build_plan(fb.scan(folder), seed=7)


def waiting(batch: pa.RecordBatch, seconds: float) -> dict[str, Any]:
    """Transform that takes `seconds` and no core."""
    time.sleep(seconds)
    names = [name for name in batch.schema.names if name != "id"]
    return {
        "id": batch.column("id").to_numpy(),
        "x": np.stack([batch.column(name).to_numpy() for name in names], axis=1),
    }


def start_data_nodes() -> None:
    """Wait for the actors of the data nodes: they outlive jobs, so only the first job waits for them."""
    here = RayDataNodes(ray.get_runtime_context().get_node_id())
    while len(here.cores("data_node")) < DATA_NODES:
        time.sleep(0.1)


def epoch(plan: fb.Plan, transform: fb.Transform, spec: fb.CacheSpec) -> tuple[float, str, Counters]:
    """Seconds, hash of the row order and counters of a cold epoch, from when the actor of the cache has started."""
    counters, order = Counters(), hashlib.sha256()
    cache = attach(spec)
    start = time.perf_counter()
    with fb.Loader(plan, transform, cache, global_batch=8192, as_numpy=True, counters=counters) as loader:
        for batch in loader:
            order.update(np.ascontiguousarray(batch["id"]))
    return time.perf_counter() - start, order.hexdigest()[:12], counters


def line(found: tuple[float, str, Counters], data_nodes: str | None) -> str:
    seconds, order, counters = found
    way = f"{DATA_NODES} data nodes" if data_nodes else "alone"
    return (
        f"{way:13} {seconds:6.2f} s  {counters['rows'] / seconds:9,.0f} rows/s  "
        f"{counters['data_node_blocks']:4.0f} of {counters['stores']:.0f} blocks from data nodes  order {order}"
    )


if __name__ == "__main__":
    typer.run(main)
