"""The model of `studies.control_plane` beside real ranks, which exchange the votes of commits over gloo.

unshare -n sh -c 'ip link set lo up; python -m studies.commit_votes 8 16 32'   # as root

The bytes are counted at the loopback interface.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch  # before the forks
from studies.control_plane import vote_of

from forebay.training.collectives.torch_collective import process_group
from forebay.training.state import rng
from forebay.training.worker.commit_vote import CommitDecision, CommitVote
from forebay.world import World

COMMITS = 50


def loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def num_sockets() -> int:
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            links.append(str(each.readlink()))
    return sum(link.startswith("socket:") for link in links)


def votes(ranks: int) -> dict[str, float]:
    """Bytes of a commit over all links, and CPU ms of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            if (pid := os.fork()) == 0:
                try:
                    commit_votes(World(rank=rank, size=ranks), Path(folder))
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        found: dict[str, float] = json.loads((Path(folder) / "found.json").read_text())
        return found


def commit_votes(world: World, folder: Path) -> None:
    torch.set_num_threads(1)
    before = loopback_bytes()
    with process_group(world, f"file://{folder}/meeting", timeout_s=120) as collective:
        generators = rng.RankGenerators()
        state = rng.light(rng.capture(torch.device("cpu")))

        def decide(votes: Sequence[CommitVote]) -> CommitDecision:
            generators.hear([each.rng for each in votes])
            return CommitDecision.of(votes)

        def commit() -> None:
            collective.combine(vote_of(world.rank, generators.news(state)), decide)

        for _ in range(3):
            commit()  # the first one sends all generators
        began, cpu, sockets = loopback_bytes(), time.process_time(), num_sockets()
        for _ in range(COMMITS):
            commit()
        if world.is_first:
            cpu_ms = 1e3 * (time.process_time() - cpu) / COMMITS
            sent = (loopback_bytes() - began) / COMMITS
            met = (began - before) / 1e3
            facts = {"kB": sent / 1e3, "CPU ms of rank 0": cpu_ms, "kB to meet": met, "sockets of rank 0": sockets}
            (folder / "found.json").write_text(json.dumps(facts))
        collective.combine(None, len)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="+")
    asked = parser.parse_args(arguments)
    for ranks in asked.ranks:
        print(ranks, json.dumps(votes(ranks)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
