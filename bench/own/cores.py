"""Epochs on 1, 2, 4, ... all cores, beside pyarrow's decode and a torch `DataLoader` of as many processes.

    PYTHONPATH=platform python -m bench.own.cores [--rows N] [--cores 1,2,4] [--data-workers threads,processes]

Prints JSON lines and a table, within three minutes. `--markdown` prints the rows of docs/benchmarks/gpu.md instead, and
`--of PATH` makes either of an earlier run's output. Needs no GPU, and uses none.

Each measurement is a process of its own, bound to its cores before it imports anything.
The second line says how fast the memory, or disk, of the caches was written at its first touch, and at the next.

- cold: an epoch that builds all blocks and writes them into an empty cache
- no room: an epoch of a cache that may hold nothing, so that every block is built and handed over
- cached: an epoch whose blocks are in the cache
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any

import numpy as np

from bench.device import clicks
from bench.device.report import cores_rows
from bench.machine import machine_and_code
from bench.process_usage import cpu_s, memory_in_use
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

_BATCH = 8192
_GROUP_ROWS = 15_625
_SMALL_ROWS = 2048
_ROWS_PER_CORE = 500_000
_MOST_ROWS = 8_000_000
_LIMIT_S = 170.0
_REPEATS = 2
_SLOW_S = 5.0
_QUOTA_BYTES = 64 << 30


def forebay(setting: dict[str, Any]) -> None:
    """Cold epochs into new caches, cached epochs, and epochs without room."""
    import forebay as fb  # noqa: PLC0415 - after this process is bound to its cores
    from forebay.data.cache.source import LocalCache  # noqa: PLC0415

    folder, work, rows = Path(setting["folder"]), Path(setting["work"]), Path(setting["data"])

    def opened(data: Path, name: str, quota_bytes: int, epochs: int) -> fb.Loader:
        transform = fb.Transform(x=fb.Dense(clicks.DENSE), label=fb.Label("label"))
        plan = fb.build_plan(fb.scan(str(data)), seed=1)
        spec = fb.CacheSpec(path=str(work / name), quota_bytes=quota_bytes, min_free_bytes=0, core_share=1.0)
        return fb.Loader(fb.Data(plan=plan, transform=transform, global_batch=_BATCH), LocalCache(spec), epochs=epochs)

    began = time.perf_counter()
    with opened(folder / "small", "small", _QUOTA_BYTES, 2) as loader:  # compiles kernels, starts data workers
        for _ in range(2):
            list(loader)
    say(phase="start", seconds=round(time.perf_counter() - began, 2))
    for number in range(_REPEATS):
        last = number == _REPEATS - 1
        with opened(rows, f"cold-{number}", _QUOTA_BYTES, 4 if last else 1) as loader:
            _measure("cold", loader, counters=loader.counters.as_dict)
            for _ in range(3 if last else 0):
                _measure("cached", loader)
    with opened(rows, "no-room", 0, _REPEATS) as loader:
        for _ in range(_REPEATS):
            _measure("no room", loader)


def arrow(setting: dict[str, Any]) -> None:
    """Pyarrow's decode with as many threads as cores. On one core also a gather of rows in memory."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.dataset as ds  # noqa: PLC0415

    pa.set_cpu_count(setting["cores"])
    pa.set_io_thread_count(max(2, setting["cores"]))
    data = ds.dataset(setting["data"])
    for _ in range(_REPEATS):
        _measure("decode", data.to_batches(batch_size=_GROUP_ROWS, use_threads=True), lambda each: each.num_rows)
    if setting["cores"] == 1:
        rows, out = setting["rows"], np.empty((_BATCH, len(clicks.DENSE) + 1), np.float32)
        matrix, order = np.ones((rows, out.shape[1]), np.float32), np.random.default_rng(0).permutation(rows)
        starts = range(0, rows - _BATCH + 1, _BATCH)
        for _ in range(_REPEATS):
            taken = (np.take(matrix, order[start : start + _BATCH], axis=0, out=out) for start in starts)
            _measure("numpy take", taken, len)


def torch_processes(setting: dict[str, Any]) -> None:
    """A torch `DataLoader` with as many processes as cores."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    from bench.device.feeds import ClickRows  # noqa: PLC0415

    rows = ClickRows(Path(setting["data"]), _BATCH, buckets=None)
    loader = DataLoader(rows, batch_size=None, num_workers=setting["cores"], prefetch_factor=4, persistent_workers=True)
    began = time.perf_counter()
    _measure("every epoch", loader, lambda batch: len(batch["label"]))
    if time.perf_counter() - began < _SLOW_S:  # else the start of its processes is a small part
        _measure("every epoch", loader, lambda batch: len(batch["label"]))


def _measure(
    phase: str, batches: Iterable[Any], rows_of: Callable[[Any], int] | None = None, **facts: Callable[[], Any]
) -> None:
    """Say the rate of an epoch, with the CPU time and the memory of all processes."""
    # CPU first: it reads the files of all processes, 40 ms for 16 of them.
    rows, cpu, began = 0, cpu_s(), time.perf_counter()
    for batch in batches:
        rows += _num_labels(batch) if rows_of is None else rows_of(batch)
    spent = time.perf_counter() - began
    used, memory = cpu_s() - cpu, memory_in_use()
    say(
        phase=phase,
        rows=rows,
        seconds=round(spent, 3),
        mrows_s=round(rows / spent / 1e6, 4),
        cpu_s_per_mrow=round(1e6 * used / max(rows, 1), 3),
        private_mb=round(memory.private_bytes / 1e6),
        shared_mb=round(memory.shared_bytes / 1e6),
        processes=memory.num_processes,
        **{name: {key: round(each, 3) for key, each in value().items() if each} for name, value in facts.items()},
    )


def _num_labels(batch: dict[str, Sized]) -> int:
    return len(batch["label"])


CHILDREN = {"forebay": forebay, "pyarrow": arrow, "torch DataLoader": torch_processes}


def child(setting: dict[str, Any]) -> None:
    """One system on some of the cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: setting["cores"]])
    CHILDREN[setting["system"]](setting)


def run(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All turns. Returns their lines."""
    facts = machine_and_code(given.commit)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for all children: no context, no page-locked memory
    cores = max(1, int(facts["usable_cores"]))
    rows = given.rows or min(_MOST_ROWS, _ROWS_PER_CORE * cores)
    row_bytes = clicks.bytes_per_row(with_ids=False)
    with working_folder((2 + _REPEATS) * rows * row_bytes, given.folder) as folder:
        turns = Turns("bench.own.cores", folder, limit_s=given.limit)
        group_rows = min(_GROUP_ROWS, max(1, rows // clicks.GROUPS_PER_FILE))
        written = clicks.write(folder / "data", rows, group_rows=group_rows, with_ids=False, processes=cores)
        small = {"group_rows": _SMALL_ROWS // clicks.GROUPS_PER_FILE, "with_ids": False, "processes": 1}
        clicks.write(folder / "small", _SMALL_ROWS, **small)
        source_bytes = sum(path.stat().st_size for path in (folder / "data").iterdir())
        size = {"rows": written, "row_bytes": row_bytes, "source_bytes_per_row": round(source_bytes / written)}
        turns.add(facts | size | {"bench": "cores", "folder": str(folder.parent)})
        turns.add(touched(folder, written * row_bytes))
        ways = [("forebay", each) for each in given.data_workers] + [("pyarrow", ""), ("torch DataLoader", "")]
        # The most cores first: what is left out for want of time is what matters least.
        for count in sorted(given.cores or _counts(cores), reverse=True):
            data = _part(folder, count / cores)
            for system, data_workers in ways:
                own = {"system": system, "cores": count} | ({"data_workers": data_workers} if data_workers else {})
                work = folder / "work"
                setting = {"folder": folder, "data": data, "work": work, "rows": written, "facts": own}
                turns.run(setting | own, data_workers=data_workers)
                shutil.rmtree(work, ignore_errors=True)
    return turns.lines


def _part(folder: Path, share: float) -> Path:
    """Folder with a share of the files: epochs on few cores take as long as those on many."""
    files, found = sorted((folder / "data").iterdir()), folder / f"data-{share:.4f}"
    found.mkdir()
    for each in files[: max(1, round(share * len(files)))]:
        (found / each.name).hardlink_to(each)
    return found


def _counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores."""
    return sorted({*(1 << bits for bits in range(cores.bit_length())), cores})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="of all cores; by default 500,000 for each, up to 8 million")
    parser.add_argument("--cores", type=numbers_of, help="numbers of cores, by commas")
    parser.add_argument("--data-workers", type=words_of, default=["threads", "processes"], help="ways, by commas")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds after which no turn goes on")
    parser.add_argument("--seconds", type=float, dest="limit", help="the same")
    parser.add_argument("--folder", type=Path, help="for data and caches; by default in memory, if there is room")
    parser.add_argument("--commit", help="of this code, where the repository has no history")
    parser.add_argument("--markdown", action="store_true", help="print rows for the page")
    parser.add_argument("--of", type=Path, help="output of an earlier run, instead of a new one")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        end_turn()
    rows = cores_rows(read_lines(given.of) if given.of else run(given))
    print(markdown_table(rows) if given.markdown else text_table(rows))


if __name__ == "__main__":
    main()
