"""Data plane of 10 to 1,000 nodes: the product's code on simulated transports and clocks.

    python -m studies.data_plane peers      # filters of the nodes: requests and bytes
    python -m studies.data_plane restart    # half of the caches empty: blocks from peers and from the source
    python -m studies.data_plane herd       # jobs that start within a minute on one prefix of S3
    python -m studies.data_plane memory     # a plan of 10^10 rows in a rank

A size of 1,000 nodes takes a minute of CPU. `docs/scale.md` has the figures.
"""

from __future__ import annotations

import typer
from studies.data_plane.first_batch import MOST_OPEN
from studies.data_plane.herd import Load, simulate
from studies.data_plane.memory import measure
from studies.data_plane.peers import PeerCluster, Traffic
from studies.data_plane.restart import FirstBlocks, restart

SIZES = "10,100,1000"
BLOCKS = 1000
LOADS = {
    "50 scans of 6,000 files": Load(processes=50, threads=16, reads=6000, requests=2),
    "first epoch of 50 jobs on 20 nodes each": Load(processes=1000, threads=8, reads=150, requests=4),
    "one job, 1,000 nodes started within 10 s": Load(processes=1000, threads=8, reads=50, requests=4, start_s=10.0),
}
app = typer.Typer(add_completion=False, help=__doc__)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


@app.command()
def peers(nodes: str = SIZES) -> None:
    """Spread of filters at a start, and again when they are old."""
    for size in _sizes(nodes):
        cluster = PeerCluster([range(number * BLOCKS, (number + 1) * BLOCKS) for number in range(size)])
        for what in ("start", "refresh"):
            cluster.traffic = Traffic()
            seconds = cluster.spread_filters()
            traffic = cluster.traffic
            print(
                f"{size} nodes, {what}: {traffic.asked_filters.total() / size:.0f} requests a node (most "
                f"{max(traffic.asked_filters.values())}, answered by one {max(traffic.answered_filters.values())}), "
                f"{traffic.filter_bytes.total() / size / 1e6:.2f} MB a node, {traffic.lists} lists, {seconds:.1f} s",
                flush=True,
            )
            cluster.now += max(2.0, 0.02 * size)


@app.command("restart")
def restarts(nodes: str = SIZES, groups: int = 0) -> None:
    """Restart with other ranks on the nodes, and half of the caches empty. 1,000 row groups a node."""
    for size in _sizes(nodes):
        lanes = max(1024, 8192 * size // 1000)
        print(size, "nodes:", restart(size, groups or BLOCKS * size, lanes), flush=True)
        start = FirstBlocks(size, groups or BLOCKS * size, lanes)
        for kept, reads, most_open in ((0.5, 8, MOST_OPEN), (0.0, 8, MOST_OPEN), (1.0, 64, 32), (1.0, 64, MOST_OPEN)):
            counts = start.run(kept=kept, reads=reads, most_open=most_open)
            print(f"  {kept:.0%} kept, {reads} reads at once, {most_open} requests at a peer: {counts}", flush=True)


@app.command()
def herd(limit_s: float = 1200.0) -> None:
    """Jobs that start together: 5,500 requests a second, all others are refused."""
    for name, load in LOADS.items():
        for is_paced in (False, True):
            found = simulate(load, is_paced=is_paced, give_up_s=limit_s)
            print(f"{name}, {'paced' if is_paced else 'before'}: at least {load.least_s:.0f} s; {found}", flush=True)


@app.command()
def memory() -> None:
    """Plan of 10^6 row groups, in files of 10 row groups and of one."""
    for per_file in (10, 1):
        print(f"{1_000_000 // per_file:,} files: {measure(1_000_000, per_file)}", flush=True)


if __name__ == "__main__":
    app()
