"""Share of time in which a GPU is busy with a DLRM fed from Parquet: by Forebay, a `DataLoader`, petastorm.

    PYTHONPATH=platform python -m bench.device.feed [--seconds 5] [--rows N] [--data-workers threads,processes]

Prints JSON lines and a table, within three minutes. `--markdown` prints the rows of docs/benchmarks/gpu.md instead of
the table, `--model` the needs of a machine with 96 cores and 8 GPUs, `--of PATH` any of them of an earlier run's
output. Needs torch, numpy, numba, pyarrow and the packages
that Forebay needs to read files; no Ray. Without a GPU, a small model runs on the CPU, and no share is reported.

Each way of feeding is a process of its own. There, the same steps first run on batches that stay on the device: the
*ceiling*. `busy` is the time of a step there over the time of a step that was fed.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.device import clicks
from bench.device.report import feed_rows, model_rows
from bench.machine import machine_and_code
from bench.turns import (
    Turns,
    end_turn,
    markdown_table,
    numbers_of,
    read_lines,
    say,
    text_table,
    touched,
    words_of,
    working_folder,
)

BATCHES = (8192, 65_536)
_GROUP_ROWS = 31_250
_SMALL_ROWS = 2048
_ROWS_PER_CORE = 250_000
_MOST_ROWS = 4_000_000
_LIMIT_S = 170.0


def child(setting: dict[str, Any]) -> None:
    """One way of feeding, at all sizes of a batch."""
    from bench.device.dlrm import BUCKETS, DEVICE, Trainer, ceiling, clock  # noqa: PLC0415 - slow to import
    from bench.device.feeds import FEEDS, FeedSetting  # noqa: PLC0415

    folder = Path(setting["folder"])
    shared = FeedSetting(
        data=folder / "data",
        small_data=folder / "small",
        work=Path(setting["work"]),
        batch=0,
        seconds=setting["seconds"],
        processes=setting["processes"],
        device=DEVICE,
        buckets=BUCKETS,
    )
    for batch in setting["batches"]:
        step = Trainer()
        top = ceiling(step, batch, setting["seconds"] / 3)
        say(batch=batch, phase="ceiling", **top)
        for phase in FEEDS[setting["system"]](replace(shared, batch=batch)):
            found = clock(step, phase.batches, phase.seconds)
            busy = round(found["mrows_s"] / top["mrows_s"], 3)
            shown = {"of_ceiling": busy, "busy": busy if DEVICE == "cuda" else None}
            say(batch=batch, phase=phase.name, **shown, **found, start_s=round(phase.start_s, 2), **phase.facts())


def run(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All turns. Returns their lines."""
    facts = machine_and_code(given.commit)
    cores = max(1, int(facts["usable_cores"]))
    rows = given.rows or min(_MOST_ROWS, _ROWS_PER_CORE * cores)
    row_bytes = clicks.bytes_per_row(with_ids=True)
    with working_folder(2 * rows * row_bytes, given.folder) as folder:
        turns = Turns(__spec__.name, folder, limit_s=given.limit)
        group_rows = min(_GROUP_ROWS, max(1, rows // clicks.GROUPS_PER_FILE))
        written = clicks.write(folder / "data", rows, group_rows=group_rows, with_ids=True, processes=cores)
        small = {"group_rows": _SMALL_ROWS // clicks.GROUPS_PER_FILE, "with_ids": True, "processes": 1}
        clicks.write(folder / "small", _SMALL_ROWS, **small)
        source_bytes = sum(path.stat().st_size for path in (folder / "data").iterdir())
        size = {"rows": written, "row_bytes": row_bytes, "source_bytes_per_row": round(source_bytes / written)}
        gpu = facts["gpus"][0] if facts["gpus"] else "no GPU: the model runs on the CPU"
        turns.add(facts | size | {"bench": "feed", "gpu": gpu, "folder": str(folder.parent)})
        turns.add(touched(folder, written * row_bytes))
        processes = given.processes or max(1, cores // 2)
        shared = {"folder": folder, "batches": given.batches, "seconds": given.seconds, "processes": processes}
        ways = [("forebay", each) for each in given.data_workers]
        ways += [("torch DataLoader", ""), *([("petastorm", "")] if find_spec("petastorm") else [])]
        for number, (system, data_workers) in enumerate(ways):
            own = {"system": system, "work": folder / f"work-{number}"}
            label = {"data_workers": data_workers} if data_workers else {}
            label |= {"processes_given": processes} if system == "torch DataLoader" else {}
            turns.run(shared | own | {"facts": {"system": system} | label}, data_workers=data_workers)
        if not find_spec("petastorm"):
            turns.add({"system": "petastorm", "failed": "not installed here"})
    return turns.lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement, at most")
    parser.add_argument("--rows", type=int, help="of the data; by default 250,000 for each core, up to 4 million")
    parser.add_argument("--batches", type=numbers_of, default=BATCHES, help="sizes of a batch, by commas")
    parser.add_argument("--data-workers", type=words_of, default=["threads", "processes"], help="ways, by commas")
    parser.add_argument("--processes", type=int, help="of the DataLoader; by default half of the cores")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds after which no turn goes on")
    parser.add_argument("--folder", type=Path, help="for data and caches; by default in memory, if there is room")
    parser.add_argument("--commit", help="of this code, where the repository has no history")
    parser.add_argument("--markdown", action="store_true", help="print rows for the page")
    parser.add_argument("--model", action="store_true", help="print the needs of a larger machine")
    parser.add_argument("--of", type=Path, help="output of an earlier run, instead of a new one")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        import torch  # noqa: PLC0415 - slow to import

        torch.set_num_threads(min(4, len(os.sched_getaffinity(0))))
        child(given.child)
        end_turn()
    lines = read_lines(given.of) if given.of else run(given)
    rows = model_rows(lines) if given.model else feed_rows(lines)
    print(markdown_table(rows) if given.markdown else text_table(rows))


if __name__ == "__main__":
    main()
