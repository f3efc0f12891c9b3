"""One world of ranks on links of their own, in a network namespace of its own.

`python -m bench.tables.world FOLDER PROGRAM RANKS`: `FOLDER/setting.json` is a `TableSetting`, and each rank writes
`FOLDER/rank-N.json`. `PROGRAM` is the module of a rank, with the arguments of `bench.tables.rank`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.processes import command, environment, last_line, run_child
from bench.tables import links
from bench.tables.setting import TableSetting
from bench.tables.ways import SERVER, ranks_of

LIMIT_S = 400.0
RANK_PROGRAM = "bench.tables.rank"


def run_world(setting: TableSetting, program: str = RANK_PROGRAM) -> list[dict[str, Any]]:
    """Run all ways of `setting`, and return the figures of each rank by way. Raises `RuntimeError` if a rank fails."""
    if len(setting.ways) > 1 and SERVER in setting.ways:
        raise ValueError(f"the way {SERVER!r} has a world of its own")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "setting.json").write_text(json.dumps(asdict(setting)))
        log = folder / "log"
        variables = environment("RAY_") | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        ranks = ranks_of(setting, setting.ways[0])
        line = [*links.OWN_NAMESPACE, *command("bench.tables.world", folder, program, ranks)]
        how = run_child(line, log, variables, LIMIT_S)
        answers = [_read(folder / f"rank-{rank}.json") for rank in range(ranks)]
        if wrong := [each["error"] for each in answers if "error" in each]:
            raise RuntimeError(f"{how}; {wrong[0]}; last words: {last_line(log)}")
        return answers


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {"error": f"no {path.name}"}


@contextmanager
def _rank(folder: Path, rank: int, program: str) -> Iterator[subprocess.Popen[bytes]]:
    setting, answer = folder / "setting.json", folder / f"rank-{rank}.json"
    line = [*links.OWN_NAMESPACE, *command(program, setting, answer, rank)]
    with subprocess.Popen(line) as child:  # noqa: S603
        try:
            links.connect(child.pid, rank)
            yield child
        finally:
            child.kill()


def main() -> None:
    folder, program, ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    links.make_switch()
    with ExitStack() as stack:
        children = [stack.enter_context(_rank(folder, rank, program)) for rank in range(ranks)]
        for child in children:
            child.wait()


if __name__ == "__main__":
    main()
