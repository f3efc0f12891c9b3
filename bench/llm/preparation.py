"""Preparation of packed rows by one process and by two: tokens per second and core.

python -m bench.llm.preparation CHATS_FOLDER MODEL INTO PROCESSES
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import forebay as fb
from bench.llm.data import SEQ_LEN, chats_of
from bench.processes import command, environment, last_line, run_child

FILES = 8
SMALL, LARGE = 250, 2_500
"""Chats of a file. The start of processes costs the same for both, and is left out of the rate."""


def write_files(folder: Path, count: int) -> Path:
    """Write files of `count` chats, each of which is a span, unless they are there."""
    place = folder / f"llm-files-{FILES}x{count}"
    if not place.exists():
        draft = place.with_suffix(".unfinished")
        draft.mkdir(parents=True, exist_ok=True)
        chats = chats_of("usual", 3)
        for number in range(FILES):
            lines = (json.dumps({"messages": chat}) + "\n" for chat in islice(chats, count))
            (draft / f"{number}.jsonl").write_text("".join(lines))
        draft.rename(place)
    return place


def measure(folder: Path, model: Path, limit_s: float) -> dict[str, Any]:
    """Figures of both sizes with one process and with two, each in a child."""
    found: dict[str, Any] = {}
    for size, count in (("small", SMALL), ("large", LARGE)):
        found[size] = _of_size(write_files(folder, count), model, limit_s)
        if "error" in found[size]:
            return {"error": found[size]["error"]}
    return found


def _of_size(chats: Path, model: Path, limit_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for processes in (1, 2):
        with tempfile.TemporaryDirectory(prefix="fb-") as folder:
            output = Path(folder) / "output"
            line = command("bench.llm.preparation", chats, model, Path(folder) / "into", processes)
            how = run_child(line, output, environment() | {"OMP_NUM_THREADS": "1"}, limit_s)
            lines = [line for line in output.read_text().splitlines() if line.startswith('{"tokens"')]
            if not lines:
                return {"error": f"{processes} processes: {how}; last words: {last_line(output)}"}
            found[str(processes)] = json.loads(lines[-1])
    return found


def main() -> None:
    chats, model, into, processes = sys.argv[1:]
    source = fb.llm.TokenSource(chats, fb.llm.tokenizer(model, template="chatml"), seq_len=SEQ_LEN)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    tokens = fb.llm.prepared_tokens(fb.prepare(source, into=into, processes=int(processes)))
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {
        "tokens": tokens.counts.tokens,
        "wall_s": wall_s,
        "own_cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "children_cpu_s": others.ru_utime + others.ru_stime,
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
